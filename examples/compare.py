"""Twenty symbols, one class after the other, each drawing seen once: who still knows the first?

`python compare.py [MODEL...]` draws compare.png. The methods of scikit-learn and the nearest class
mean read vectors, here the pixels: put the features of your own encoder in their place. A MODEL
(by default those that come with onepass) sees the pictures.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.linear_model import SGDClassifier
from sklearn.neighbors import KNeighborsClassifier

import onepass
from onepass.benchmarks.glyphs import glyphs

CLASSES, SHOTS, QUERIES = 20, 5, 20
spec = onepass.EpisodeSpec(CLASSES, SHOTS, QUERIES)
train, test, _ = glyphs().sample("test", spec, 1, torch.Generator().manual_seed(0))
X, y = (train.x[0, :, 0].numpy() + 1) / 2, train.task[0].numpy()  # 0 is ink, 1 is paper
X_test, y_test = (test.x[0, :, 0].numpy() + 1) / 2, test.task[0].numpy()


class Stored(KNeighborsClassifier):
    """Nearest neighbour: keeps every example, and fits again for each batch."""

    def partial_fit(self, X, y, classes):
        held = getattr(self, "held", (X[:0], y[:0]))
        self.held = np.concatenate([held[0], X]), np.concatenate([held[1], y])
        return self.fit(*self.held)


vectors = {
    "SGDClassifier": SGDClassifier(random_state=0),
    "nearest neighbour, all kept": Stored(n_neighbors=1),
    "onepass, no weights: nearest class mean": onepass.ContinualClassifier(),
}
models = sys.argv[1:] or ["symbols", "symbols-linear"]
pictures = {f"onepass, {model}": onepass.load(model) for model in models}
for name, method in (vectors | pictures).items():
    shape = (-1, 32, 32) if name in pictures else (-1, 32 * 32)
    accuracy = []
    for seen in range(CLASSES):
        shown, asked = y == seen, y_test <= seen
        method.partial_fit(X[shown].reshape(shape), y[shown], classes=np.arange(CLASSES))
        right = method.predict(X_test[asked].reshape(shape)) == y_test[asked]
        accuracy.append(100 * np.mean(right))
    print(f"{accuracy[-1]:5.1f} % of all {CLASSES}, after {SHOTS} drawings of each: {name}")
    plt.plot(range(1, CLASSES + 1), accuracy, marker=".", label=name)
plt.xlabel("classes seen, one after the other")
plt.ylabel("right answers among them, %")
plt.title("Plain SGD knows the last class, a meta-trained learner all of them")
plt.ylim(0, 105)
plt.xticks([1, *range(5, CLASSES + 1, 5)])
plt.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15))
plt.savefig("compare.png", dpi=150, bbox_inches="tight")
