// What the server is asked, and bytes as text.

const RETRIES = 5;

export async function get(path) {
  return answered(await fetch(`/api/${path}`));
}

export async function post(path, body = {}) {
  for (let tries = 0; ; tries++) {
    const response = await fetch(`/api/${path}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    // too often: a moment later it is welcome
    if (response.status !== 429 || tries === RETRIES) return answered(response);
    await pause(200 * 2 ** tries);
  }
}

async function answered(response) {
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(content.error ?? `the server answered ${response.status}`);
  return content;
}

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));

export function toText(bytes) {
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}

export function toBytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}
