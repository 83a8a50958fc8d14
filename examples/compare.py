"""Ten digits, one class after the other, each example seen once: who still knows the first ones?

`python compare.py [MODEL]` draws compare.png. The inputs are vectors, here the 64 pixels of
scikit-learn's digits: put the features of your own encoder in their place. A MODEL, the folder of a
run or of an exported model, sees the pictures.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.neighbors import KNeighborsClassifier

import onepass

SHOTS = 20
X, y = load_digits(return_X_y=True)
train = np.concatenate([np.flatnonzero(y == digit)[:SHOTS] for digit in range(10)])
test = np.setdiff1d(np.arange(len(y)), train)


class Stored(KNeighborsClassifier):
    """Nearest neighbour: keeps every example, and fits again for each batch."""

    def partial_fit(self, X, y, classes):
        held = getattr(self, "held", (X[:0], y[:0]))
        self.held = np.concatenate([held[0], X]), np.concatenate([held[1], y])
        return self.fit(*self.held)


class Pictures:
    """A trained learner, which wants dark ink on white and not 64 numbers from 0 to 16."""

    def __init__(self, model: str):
        self.learner = onepass.load(model)

    def partial_fit(self, X, y, classes):
        self.learner.partial_fit(self.drawn(X), y)

    def predict(self, X):
        return self.learner.predict(self.drawn(X))

    def drawn(self, X):
        return (255 - 255 / 16 * X).astype(np.uint8).reshape(-1, 8, 8)


methods = {
    "SGDClassifier": SGDClassifier(random_state=0),
    "nearest neighbour, all kept": Stored(n_neighbors=1),
    "onepass, no weights: nearest class mean": onepass.ContinualClassifier(),
}
if len(sys.argv) > 1:
    methods[f"onepass, {sys.argv[1]}"] = Pictures(sys.argv[1])
for name, method in methods.items():
    accuracy = []
    for digit in range(10):
        shown = train[y[train] == digit]
        method.partial_fit(X[shown], y[shown], classes=np.arange(10))
        asked = test[y[test] <= digit]
        accuracy.append(100 * np.mean(method.predict(X[asked]) == y[asked]))
    print(f"{accuracy[-1]:5.1f} % of all ten, after {SHOTS} examples of each: {name}")
    plt.plot(range(1, 11), accuracy, marker="o", label=name)
plt.xlabel("classes seen, one after the other")
plt.ylabel("right answers among them, %")
plt.title("Plain SGD knows the last class; the others know all")
plt.ylim(0, 105)
plt.legend()
plt.savefig("compare.png", dpi=150, bbox_inches="tight")
