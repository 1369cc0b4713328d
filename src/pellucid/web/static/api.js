// Asking the server: progress while it works, cancelled by a signal, errors as sentences.

export class Problem extends Error {
  constructor({ code, message, field, detail, values }, status) {
    super(message);
    Object.assign(this, { code, field, detail, values: values ?? {}, status });
  }
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

export const get = (path, options) => ask(path, {}, options);
export const post = (path, body, options) => ask(
  path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } }, options);

async function ask(path, init, { signal, progress } = {}) {
  for (let attempt = 0; ; attempt++) {
    const job = crypto.randomUUID();
    const stop = progress ? follow(job, progress) : () => {};
    let response;
    try {
      response = await fetch(path, { ...init, signal, headers: { ...init.headers, "X-Job": job } });
      if (response.ok) return await content(response);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem({ code: "unreachable", message: String(error) }, 0);
    } finally {
      stop();
    }
    if (response.status === 429 && attempt < 5) {
      await pause(200 * 2 ** attempt);
      continue;
    }
    const said = await response.json().catch(() => ({ code: "fault", message: `HTTP ${response.status}` }));
    throw new Problem(said.code ? said : { code: "fault", message: `HTTP ${response.status}` }, response.status);
  }
}

const content = async (response) => response.headers.get("Content-Type")?.startsWith("application/octet-stream")
  ? unpack(await response.arrayBuffer()) : response.json();

/** Ask how far a job is, as long as it runs. */
function follow(job, progress) {
  let over = false;
  (async () => {
    await pause(250);
    while (!over) {
      const found = await fetch(`api/jobs/${job}`).then((answer) => answer.json()).catch(() => null);
      if (!over && found) progress(found);
      await pause(350);
    }
  })();
  return () => { over = true; };
}

/** The head and the arrays of a packed answer; see payloads.py. Arrays come back as Float32Array with a shape. */
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  for (const [name, { dtype, shape, offset }] of Object.entries(head.arrays)) {
    const size = shape.reduce((all, one) => all * one, 1);
    const start = 4 + length + offset;
    const values = dtype === "float16" ? halves(new Uint16Array(buffer, start, size)) : new Float32Array(buffer, start, size);
    head.arrays[name] = { values, shape };
  }
  return head;
}

let table = null;
function halves(bits) {
  table ??= Float32Array.from({ length: 65536 }, (_, x) => half(x));
  const values = new Float32Array(bits.length);
  for (let k = 0; k < bits.length; k++) values[k] = table[bits[k]]; // Float32Array.from would take ten times as long
  return values;
}

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}
