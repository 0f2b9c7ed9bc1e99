// One process: its memory by kind, what its frameworks have, what failed, and how it went since the page was opened.

import { bar, element, write } from "./dom.js";
import { CAN_PLOT, Course, Plot, WITHOUT_PLOTS } from "./plots.js";
import { bytes, count, gpuNumber, KINDS, plain, rate, since, timeOfDay, UNKNOWN, workload } from "./words.js";

const courses = new Map();

const key = (process) => `${process.pid} ${process.observed_since}`;
const sum = (list, of) => list.reduce((all, one) => (of(one) === null || of(one) === undefined ? all : (all ?? 0) + of(one)), null);

/** NVML's bytes, the driver's, and what PyTorch keeps of those. */
function numbers(process) {
  const gpus = process.tensor?.gpus ?? [];
  return [
    sum(process.gpus, (gpu) => gpu.used_bytes),
    sum(process.gpus, (gpu) => gpu.driver_allocated_bytes),
    sum(gpus, (gpu) => gpu.reserved_bytes),
    sum(gpus, (gpu) => gpu.allocated_bytes),
  ];
}

/** Notes what all processes have now; of ones that are gone nothing is kept. */
export function note(data) {
  const time = Date.parse(data.time) / 1000;
  const living = new Set();
  for (const process of data.data.processes) {
    living.add(key(process));
    if (!courses.has(key(process))) courses.set(key(process), new Course(4));
    courses.get(key(process)).add(time, numbers(process));
  }
  for (const name of courses.keys()) if (!living.has(name)) courses.delete(name);
}

/** The panel. `close` is called when it is to go. */
export class Panel {
  constructor(node, close) {
    this.node = node;
    this.close = close;
    this.shown = null;
  }

  show(process, envelope) {
    if (this.shown !== key(process)) this.begin(process);
    const gpus = envelope.data.gpus;
    write(this.title, `${plain(process.comm)} · ${process.pid}`);
    write(this.command, plain(process.command));
    this.facts.replaceChildren(...facts(process, envelope).map(pair));
    this.kinds.replaceChildren(...process.gpus.map((gpu) => kinds(gpu, gpus)));
    this.frameworks.replaceChildren(...frameworks(process, gpus));
    this.failures.replaceChildren(...failures(process, gpus));
    this.plot?.show(courses.get(key(process)));
  }

  begin(process) {
    this.clear();
    this.shown = key(process);
    const part = () => element("section", {});
    this.title = element("h2", {});
    this.command = element("p", { class: "command" });
    this.facts = element("dl", { class: "facts" });
    this.kinds = part();
    this.frameworks = part();
    this.failures = part();
    const host = element("div", { class: "plot" }, CAN_PLOT ? "" : WITHOUT_PLOTS);
    const button = element("button", { class: "close", "aria-label": "Close", onclick: this.close }, "×");
    this.node.replaceChildren(
      element("div", { class: "head" }, this.title, button),
      this.command,
      this.facts,
      host,
      this.kinds,
      this.frameworks,
      this.failures,
    );
    this.node.hidden = false;
    if (CAN_PLOT) {
      const lines = [
        { name: "used (NVML)", colour: "used", filled: true },
        { name: "driver", colour: "device" },
      ];
      if (process.tensor?.gpus?.length) {
        lines.push({ name: "PyTorch reserved", colour: "pool", dashed: true }, { name: "PyTorch allocated", colour: "managed" });
      }
      this.plot = new Plot(host, lines, { rows: 13 });
    }
    button.focus();
  }

  clear() {
    this.plot?.remove();
    this.plot = null;
    this.shown = null;
    this.node.hidden = true;
    this.node.replaceChildren();
  }
}

function pair([name, value, width = null]) {
  return element("div", { class: width }, element("dt", {}, name), element("dd", {}, value));
}

function facts(process, envelope) {
  const owner = workload(process);
  const list = [
    ["user", plain(process.user ?? (process.uid === null ? UNKNOWN : String(process.uid)))],
    ["running for", since(process.start_time, envelope.time)],
    ["allocations/s", rate(process.allocations_per_second)],
    ["frees/s", rate(process.frees_per_second)],
    ["pinned host memory", bytes(process.host.pinned_live_bytes)],
  ];
  if (owner) list.push(["workload", owner]);
  if (!process.from_start) list.push(["watched for", since(process.observed_since, envelope.time)]);
  if (!process.exact) list.push(["numbers", "records were lost: at least"]);
  if (process.mps_client) list.push(["MPS", "client"]);
  if (process.kv_cache) list.push(["KV cache", kvCache(process.kv_cache), "whole"]);
  return list;
}

/** The pool of an inference server at its last reading. */
function kvCache({ pool, unknown }) {
  if (pool === null) return `not known: ${plain(unknown)}`;
  const { blocks, used_blocks: used, free_blocks: free, running_requests: running, waiting_requests: waiting } = pool.fill;
  const part = (some) => (blocks ? `${((100 * some) / blocks).toFixed(1)} %` : UNKNOWN);
  const rest = pool.content
    ? `${part(pool.content.reusable_blocks)} reusable prefix, ${part(pool.content.empty_blocks)} empty`
    : `${part(free)} reusable prefix or empty`;
  const size = pool.block_bytes === null ? "" : ` of ${bytes(blocks * pool.block_bytes)}`;
  const state = pool.asleep ? "asleep; " : "";
  const requests = running === 1 ? "request" : "requests";
  return `${state}${part(used)}${size} used by ${count(running)} ${requests} (${count(waiting)} waiting), ${rest}`;
}

function table(heads, rows) {
  const cells = (name, row) => row.map((text, at) => element(name, { class: at ? "number" : null, scope: name === "th" ? "col" : null }, text));
  return element(
    "table",
    {},
    element("thead", {}, element("tr", {}, ...cells("th", heads))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells("td", row)))),
  );
}

function kinds(gpu, gpus) {
  const seen = Object.entries(gpu.kinds).filter(([, view]) => view.total_bytes !== undefined);
  const isOwn = ([name]) => KINDS.includes(name);
  seen.sort((one, other) => isOwn(other) - isOwn(one) || KINDS.indexOf(one[0]) - KINDS.indexOf(other[0]));
  const line = element("div", { class: "bar" });
  const parts = seen.filter(isOwn).map(([name, view]) => [name, view.driver_allocated_bytes, `${name} ${bytes(view.driver_allocated_bytes)}`]);
  const others = besides(gpu);
  parts.push(...others.map(([name, size]) => ["rest", size, `${name} ${bytes(size)}`]));
  bar(line, parts, Math.max(gpu.used_bytes ?? 0, gpu.driver_allocated_bytes));
  const rows = seen.map(([name, view]) => [
    name + (isOwn([name]) ? "" : ", besides") + (view.estimated ? ", estimated" : ""),
    bytes(view.driver_allocated_bytes),
    bytes(view.peak_bytes),
    count(view.allocations),
    count(view.frees),
  ]);
  rows.push(...others.map(([name, size]) => [name, bytes(size), "", "", ""]));
  const where = gpu.uuid ? `GPU ${gpuNumber(gpus, gpu.uuid)}` : "GPU not known";
  return element(
    "div",
    {},
    element("h3", {}, where, element("span", { class: "soft" }, `${bytes(gpu.used_bytes)} used, ${bytes(gpu.driver_allocated_bytes)} by the driver, peak ${bytes(gpu.peak_bytes)}`)),
    line,
    table(["kind", "now", "peak", "allocations", "frees"], rows),
  );
}

/** What NVML charges besides: memory from before the watch, and what the driver takes for itself. */
function besides(gpu) {
  const { unattributed_bytes: all, preexisting_bytes: before, preexisting_includes_context: isAll } = gpu;
  if (all === null) return [];
  if (before === null) return [["unattributed: context, code", all]];
  if (isAll) return [["pre-existing, with the context", before]];
  return [["pre-existing", before], ["unattributed: context, code", all - before]].filter(([, size]) => size !== 0);
}

const PYTORCH = [
  ["allocated", "allocated_bytes"],
  ["peak allocated", "peak_allocated_bytes"],
  ["reserved", "reserved_bytes"],
  ["peak reserved", "peak_reserved_bytes"],
  ["cached", "cached_bytes"],
  ["active", "active_bytes"],
  ["inactive split", "inactive_split_bytes"],
  ["requested", "requested_bytes"],
];

function frameworks(process, gpus) {
  const tensor = process.tensor;
  if (!tensor) return [];
  const parts = tensor.gpus.map((gpu) => {
    const known = PYTORCH.filter(([, name]) => gpu[name] !== null && gpu[name] !== undefined);
    const list = known.map(([title, name]) => [title, bytes(gpu[name])]);
    list.push(["retries", count(gpu.retries)], ["OOMs", count(gpu.ooms)]);
    const where = gpu.uuid ? `GPU ${gpuNumber(gpus, gpu.uuid)}` : `device ${gpu.device}`;
    return element("div", {}, element("h3", {}, `PyTorch on ${where}`), element("dl", { class: "facts" }, ...list.map(pair)));
  });
  for (const arena of tensor.arenas ?? []) {
    const list = [
      ["in use", bytes(arena.bytes_in_use)],
      ["peak in use", bytes(arena.peak_bytes_in_use)],
      ["pool", bytes(arena.pool_bytes)],
      ["largest allocation", bytes(arena.largest_alloc_size)],
    ];
    parts.push(element("div", {}, element("h3", {}, `Arena ${plain(arena.name ?? "")}`), element("dl", { class: "facts" }, ...list.map(pair))));
  }
  for (const device of tensor.buffers?.devices ?? []) {
    const where = device.uuid ? `GPU ${gpuNumber(gpus, device.uuid)}` : `device ${device.device}`;
    const all = device.bytes_in_use === null ? [["known", bytes(device.known_bytes)]] : [["in use", bytes(device.bytes_in_use)], ["peak in use", bytes(device.peak_bytes_in_use)]];
    const list = [...all, ...device.usages.map((one) => [plain(one.usage), bytes(one.bytes)])];
    parts.push(element("div", {}, element("h3", {}, `Buffers of ggml on ${where}`), element("dl", { class: "facts" }, ...list.map(pair))));
  }
  for (const pool of tensor.pools?.pools ?? []) {
    const where = pool.uuid ? `GPU ${gpuNumber(gpus, pool.uuid)}` : "a GPU that is not known";
    const list = [
      ["in use", bytes(pool.bytes_in_use)],
      ["peak in use", bytes(pool.peak_bytes_in_use)],
      ["pool", bytes(pool.pool_bytes)],
      ["in known blocks", bytes(pool.known_bytes)],
    ];
    if (pool.divided_bytes > 0) list.push(["divided by others", bytes(pool.divided_bytes)]);
    parts.push(element("div", {}, element("h3", {}, `${plain(pool.framework)} ${plain(pool.kind)} on ${where}`), element("dl", { class: "facts" }, ...list.map(pair))));
  }
  return parts;
}

function failures(process, gpus) {
  if (!process.failures.length) return [];
  const rows = [...process.failures].reverse().map((failure) => [
    timeOfDay(failure.time),
    bytes(failure.requested_bytes),
    `GPU ${gpuNumber(gpus, failure.uuid)}`,
    failure.error ?? String(failure.status),
  ]);
  return [element("h3", {}, "Failed allocations"), table(["time", "asked for", "GPU", "error"], rows)];
}
