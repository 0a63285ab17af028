// Requests to the server. This tab's session token is in sessionStorage, never in a cookie: browsers send cookies to
// every port of a host, and so to other servers on this machine.

const SESSION = "remoteclaw-sync-session";
let session = stored(SESSION);

export function stored(key) {
  try { return sessionStorage.getItem(key); } catch { return null; }
}
export function store(key, value) {
  try {
    if (value === null) sessionStorage.removeItem(key);
    else sessionStorage.setItem(key, value);
  } catch { /* full, or forbidden: the value lasts as long as the page */ }
}

function request(path, token, options = {}) {
  const headers = { ...options.headers, ...(token && { Authorization: `Bearer ${token}` }) };
  return fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
}

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function answer(response) {
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  throw new ServerError(response.status, body.error || `the server answered ${response.status}`);
}

export const get = async (path) => answer(await request(path, session));

export const post = async (path, data) => answer(await request(path, session, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(data),
}));

export const upload = async (blob) => answer(await request("/api/images", session, {
  method: "POST", headers: { "Content-Type": blob.type }, body: blob,
}));

// An image of this server as an address that only this page can use: an <img> cannot send the session token.
export async function imageAddress(name) {
  const response = await request(`/api/images/${name}`, session);
  if (!response.ok) return null;
  return URL.createObjectURL(await response.blob());
}

// The link in the address works once. It is exchanged for a session that only this tab has.
export async function enter() {
  const link = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!link) return;
  const response = await request("/api/session", link, { method: "POST" });
  history.replaceState(null, "", "/");
  try {
    session = (await answer(response)).session;
    store(SESSION, session);
  } catch (error) {
    if (!session) throw error;  // An old link does not sign out a tab that is signed in.
  }
}

// The events of a run after `last`, as { id, event, data }. Throws if the connection is lost; a ServerError is final.
export async function* events(run, last) {
  const response = await request(`/api/runs/${run}/events`, session, { headers: last ? { "Last-Event-ID": last } : {} });
  if (!response.ok) await answer(response);
  yield* frames(response.body);
}

// Parses an event stream by hand: the browser's own EventSource cannot send headers.
async function* frames(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const found = (rest + value).split("\n\n");
      rest = found.pop();
      for (const block of found) {
        const frame = {};
        for (const line of block.split("\n")) {
          const colon = line.indexOf(": ");
          if (colon > 0) frame[line.slice(0, colon)] = line.slice(colon + 2);
        }
        if (frame.data) yield frame;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
