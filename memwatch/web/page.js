// The page: takes events from the agent and shows what they say. See process.js for one process, plots.js for courses.

import { bar, element, keyed, mark, write } from "./dom.js";
import { CAN_PLOT, Course, Plot, WITHOUT_PLOTS } from "./plots.js";
import { note, Panel } from "./process.js";
import { bytes, count, duration, gpuNumber, KINDS, percent, plain, since, timeOfDay, UNKNOWN, verdict, workload, workloadName } from "./words.js";

/** A page that has heard nothing for so long says so, milliseconds. */
const SILENCE = 5000;
/** As many failed allocations are listed. */
const FAILURES = 20;

const state = { envelope: null, sort: "used", descending: true, filter: "", open: null, heard: 0 };
const trails = new Map();
const colours = new Map();
/** So many processes have a part of their own in a GPU's bar, and as many colours there are. */
const SHARES = 8;

/** The colour of a process, in the bars of GPUs and in its row. */
function colourOf(process) {
  const name = `${process.pid} ${process.observed_since}`;
  if (!colours.has(name)) colours.set(name, `share-${colours.size % SHARES}`);
  return colours.get(name);
}

const sum = (list, of) => list.reduce((all, one) => (of(one) === null || of(one) === undefined ? all : (all ?? 0) + of(one)), null);
const living = () => state.envelope.data.processes.filter((process) => process.ended === null);
const framework = (process) => {
  const { gpus = [], arenas = [], buffers, pools } = process.tensor ?? {};
  // What another allocator divides is in that one's bytes.
  const ofPools = (name) => (pools?.pools ?? []).map((pool) => (pool[name] === null ? null : pool[name] - pool.divided_bytes));
  return {
    held: sum([...gpus.map((gpu) => gpu.allocated_bytes), ...arenas.map((arena) => arena.bytes_in_use), ...(buffers?.devices ?? []).map((device) => device.bytes_in_use), ...ofPools("bytes_in_use")], (one) => one),
    cached: sum([...gpus.map((gpu) => gpu.cached_bytes), ...arenas.map((arena) => (arena.bytes_in_use === null ? null : arena.pool_bytes - arena.bytes_in_use))], (one) => one),
  };
};

/** Columns of the table of processes: what stands in them, by what they sort, and from which width of the table on they are there. */
const COLUMNS = [
  { name: "pid", title: "PID", value: (process) => process.pid, text: (process) => String(process.pid), number: true },
  { name: "user", title: "User", value: (process) => process.user ?? "", text: (process) => plain(process.user ?? UNKNOWN), from: "m" },
  { name: "gpu", title: "GPU", value: (process) => gpusOf(process), text: (process) => gpusOf(process), from: "s" },
  { name: "used", title: "Used", value: (process) => usedBy(process), text: (process) => bytes(usedBy(process)), number: true },
  { name: "driver", title: "Driver", value: (process) => liveOf(process), text: (process) => bytes(liveOf(process)), number: true, from: "s" },
  { name: "peak", title: "Peak", value: (process) => sum(process.gpus, (gpu) => gpu.peak_bytes), text: (process) => bytes(sum(process.gpus, (gpu) => gpu.peak_bytes)), number: true, from: "l" },
  { name: "kinds", title: "Kinds", value: (process) => liveOf(process), bar: true, from: "m" },
  { name: "tensors", title: "Tensors", value: (process) => framework(process).held, text: (process) => bytes(framework(process).held), number: true, from: "m" },
  { name: "cached", title: "Cached", value: (process) => framework(process).cached, text: (process) => bytes(framework(process).cached), number: true, from: "l" },
  { name: "failed", title: "Failed", value: (process) => failedOf(process), text: (process) => count(failedOf(process)), number: true, from: "m" },
  { name: "age", title: "Age", value: (process) => -Date.parse(process.start_time ?? process.observed_since), text: (process) => since(process.start_time, state.envelope.time), number: true, from: "l" },
  { name: "workload", title: "Workload", value: (process) => workload(process), text: (process) => workload(process), from: "xl" },
  { name: "command", title: "Command", value: (process) => process.command, text: (process) => plain(process.command || process.comm), wide: true },
];

function gpusOf(process) {
  const numbers = process.gpus.map((gpu) => gpuNumber(state.envelope.data.gpus, gpu.uuid));
  return [...new Set(numbers)].join(", ") || UNKNOWN;
}

function usedBy(process) {
  return sum(process.gpus, (gpu) => gpu.used_bytes);
}

function liveOf(process) {
  return sum(process.gpus, (gpu) => gpu.driver_allocated_bytes);
}

function failedOf(process) {
  return sum(process.gpus, (gpu) => gpu.failed_allocations) ?? 0;
}

// --- What stands on the page

const ui = build();
const panel = new Panel(ui.panel, () => openProcess(null));

function build() {
  const page = document.getElementById("page");
  const section = (title, ...rest) => element("section", {}, element("h2", {}, title), ...rest);
  const made = {
    notes: element("ul", { class: "notes" }),
    gpus: element("div", { class: "gpus" }),
    workloads: element("tbody", {}),
    rows: element("tbody", {}),
    besides: element("p", { class: "soft" }),
    failures: element("tbody", {}),
    panel: element("aside", { id: "panel", "aria-label": "Process", hidden: true }),
    filter: element("input", { type: "search", placeholder: "Filter: name, user, PID …", "aria-label": "Filter processes", autocomplete: "off" }),
    state: document.getElementById("state"),
  };
  const heads = (list) => element("thead", {}, element("tr", {}, ...list));
  const head = ({ name, title, number, from, wide }) =>
    element("th", { scope: "col", class: classes({ number, from, wide }) }, element("button", { "data-sort": name, onclick: () => sortBy(name) }, title));
  const plainHeads = (titles) => heads(titles.map(([title, number]) => element("th", { scope: "col", class: number ? "number" : null }, title)));
  made.heads = heads(COLUMNS.map(head));
  made.workloadsSection = section(
    "Workloads",
    element("div", { class: "wide" }, element("table", {}, plainHeads([["Workload"], ["GPU"], ["Used", true], ["Driver", true], ["Peak", true], ["Growth", true], ["Processes", true], ["Failed", true]]), made.workloads)),
  );
  made.failuresSection = section(
    "Failed allocations",
    element("div", { class: "wide" }, element("table", {}, plainHeads([["Time"], ["PID", true], ["Asked for", true], ["GPU"], ["Error"], ["Command"]]), made.failures)),
  );
  page.replaceChildren(
    made.notes,
    element("section", {}, element("h2", { class: "unseen" }, "GPUs"), made.gpus),
    element(
      "section",
      {},
      element("div", { class: "head" }, element("h2", {}, "Processes"), made.filter),
      element("div", { class: "wide" }, element("table", { class: "processes" }, made.heads, made.rows)),
      made.besides,
    ),
    made.workloadsSection,
    made.failuresSection,
  );
  document.body.append(made.panel);
  document.body.classList.add("live");
  made.filter.addEventListener("input", () => {
    state.filter = made.filter.value.trim().toLowerCase();
    showProcesses();
  });
  return made;
}

function classes({ number, from, wide }) {
  return [number && "number", from && `from-${from}`, wide && "fill"].filter(Boolean).join(" ") || null;
}

// --- GPUs

const gpuCourse = (uuid) => {
  if (!trails.has(uuid)) trails.set(uuid, new Course(2));
  return trails.get(uuid);
};

function gpuCard(gpu) {
  const card = element("article", { class: "gpu" });
  const parts = (card.parts = {
    name: element("h3", {}),
    used: element("strong", {}),
    of: element("span", { class: "soft" }),
    bar: element("div", { class: "bar tall" }),
    facts: element("p", { class: "facts-line" }),
    plot: element("div", { class: "plot" }, CAN_PLOT ? "" : WITHOUT_PLOTS),
  });
  card.append(parts.name, element("p", { class: "amount" }, parts.used, " ", parts.of), parts.bar, parts.facts, parts.plot);
  if (CAN_PLOT) {
    const lines = [{ name: "used (NVML)", colour: "used", filled: true }, { name: "driver", colour: "device" }];
    card.plot = new Plot(parts.plot, lines, { most: gpu.total_bytes });
    card.gone = () => card.plot.remove();
  }
  return card;
}

function showGpu(card, gpu) {
  const { gpus, processes } = state.envelope.data;
  const { name, used, of, facts } = card.parts;
  write(name, `GPU ${gpuNumber(gpus, gpu.uuid)} · ${plain(gpu.name)}`);
  mark(name, "title", gpu.uuid);
  write(used, bytes(gpu.used_bytes));
  write(of, `of ${bytes(gpu.total_bytes)} · ${percent(gpu.used_bytes, gpu.total_bytes)}`);
  const holders = processes
    .filter((process) => process.ended === null)
    .flatMap((process) => process.gpus.filter((own) => own.uuid === gpu.uuid).map((own) => [process, own.used_bytes ?? own.driver_allocated_bytes]));
  const shares = holders.slice(0, SHARES).map(([process, held]) => [colourOf(process), held, `${plain(process.comm)} ${process.pid}: ${bytes(held)}`]);
  const named = sum(shares, ([, held]) => held) ?? 0;
  shares.push(["rest", Math.max(0, (gpu.used_bytes ?? named) - named), `others: ${bytes(Math.max(0, (gpu.used_bytes ?? named) - named))}`]);
  bar(card.parts.bar, shares, gpu.total_bytes ?? gpu.used_bytes ?? named);
  const sensors = gpu.sensors ?? {};
  const list = [
    ["driver", bytes(gpu.driver_allocated_bytes)],
    ["unattributed", bytes(gpu.unattributed_bytes)],
    ["busy", sensors.utilization_percent === null || sensors.utilization_percent === undefined ? null : `${sensors.utilization_percent} %`],
    ["at", sensors.temperature_celsius === null || sensors.temperature_celsius === undefined ? null : `${sensors.temperature_celsius} °C`],
    ["draws", sensors.power_milliwatts ? `${Math.round(sensors.power_milliwatts / 1000)} W` : null],
  ];
  keyed(facts, list.filter(([, value]) => value !== null), ([title]) => title, () => element("span", {}), (part, [title, value]) => write(part, `${title} ${value}`));
  card.plot?.show(gpuCourse(gpu.uuid));
}

// --- What should be looked at

/** ` (python3 train.py of mona, ml/train-0)`: the name, user and workload of a process that grows. */
function who({ command, user, workload }) {
  const of = user ? ` of ${plain(user)}` : "";
  const words = [`${plain(command).slice(0, 60)}${of}`.trim(), workload ? plain(workload) : ""].filter((word) => word);
  return words.length ? ` (${words.join(", ")})` : "";
}

function notes() {
  const { data, losses, coverage, complete } = state.envelope;
  const list = [];
  const when = ({ seconds, earliest_seconds: first, latest_seconds: last }) =>
    `in ${duration(seconds)}${first !== null && last !== null ? ` (${duration(first)} to ${duration(last)})` : ""}`;
  const ending = data.forecasts.filter((forecast) => forecast.seconds !== null);
  const isSaid = (forecast) => forecast.pid !== null && ending.some((other) => other.pid === null && other.uuid === forecast.uuid);
  for (const forecast of ending.filter((forecast) => !isSaid(forecast))) {
    const gpu = `GPU ${gpuNumber(data.gpus, forecast.uuid)}`;
    const who = forecast.pid === null ? `${gpu} is full` : `process ${forecast.pid} finds ${gpu} full`;
    list.push(["bad", `${who} ${when(forecast)} if it goes on like this`]);
  }
  for (const growing of data.growing) {
    list.push([growing.verdict === "leak" ? "bad" : "", `process ${growing.pid}${who(growing)} ${verdict(growing.verdict)}: ${bytes(growing.bytes_per_minute)} a minute (${growing.kind ?? growing.level})`]);
  }
  const lost = Object.entries(losses).filter(([, number]) => number > 0);
  if (lost.length) list.push(["", `records were lost: ${lost.map(([name, number]) => `${name} ${count(number)}`).join(", ")}`]);
  else if (!complete) list.push(["", "not all records of this machine are there"]);
  if (coverage.nvml !== "ok") list.push(["", `NVML: ${plain(coverage.nvml_reason ?? "has not answered yet")}`]);
  return list;
}

// --- Tables

function showWorkloads() {
  const { gpus, workloads } = state.envelope.data;
  const list = workloads.filter((own) => own.kind !== "none" && own.kind !== "host").flatMap((own) => own.gpus.map((gpu) => ({ own, gpu })));
  ui.workloadsSection.hidden = list.length === 0;
  const key = ({ own, gpu }) => JSON.stringify([own.kind, own.namespace, own.pod, own.container, own.slurm_job, own.unit, gpu.uuid]);
  keyed(ui.workloads, list, key, () => cells(["", null, "number", "number", "number", "number", "number", "number"]), (row, { own, gpu }) => {
    const growth = gpu.growth_bytes_per_second;
    const texts = [workloadName(own), gpuNumber(gpus, gpu.uuid), bytes(gpu.used_bytes), bytes(gpu.driver_allocated_bytes), bytes(gpu.peak_bytes)];
    texts.push(growth === null ? UNKNOWN : `${bytes(growth * 60)}/min`, count(own.processes), count(gpu.failed_allocations));
    texts.forEach((text, at) => write(row.children[at], text));
  });
}

function cells(kinds) {
  return element("tr", {}, ...kinds.map((kind) => element("td", { class: kind || null })));
}

function showFailures() {
  const { gpus, processes } = state.envelope.data;
  const all = processes.flatMap((process) => process.failures.map((failure, at) => ({ process, failure, at })));
  all.sort((one, other) => Date.parse(other.failure.time) - Date.parse(one.failure.time));
  ui.failuresSection.hidden = all.length === 0;
  const key = ({ process, failure, at }) => `${process.pid} ${failure.time} ${at}`;
  keyed(ui.failures, all.slice(0, FAILURES), key, () => cells([null, "number", "number", null, null, "fill"]), (row, { process, failure }) => {
    const texts = [timeOfDay(failure.time), String(process.pid), bytes(failure.requested_bytes), gpuNumber(gpus, failure.uuid), failure.error ?? String(failure.status), plain(process.command || process.comm)];
    texts.forEach((text, at) => write(row.children[at], text));
  });
}

function matches(process) {
  if (!state.filter) return true;
  const texts = [String(process.pid), process.comm, process.command, process.user ?? "", workload(process), `gpu ${gpusOf(process)}`];
  return texts.some((text) => text.toLowerCase().includes(state.filter));
}

function sorted(list) {
  const { value } = COLUMNS.find((column) => column.name === state.sort);
  const order = (one, other) => {
    const [a, b] = [value(one), value(other)];
    // What is not known stands last, whichever way the rest goes.
    if (a === null || b === null) return (a === null) - (b === null);
    const compared = typeof a === "string" ? a.localeCompare(b) : a - b;
    return (state.descending ? -compared : compared) || one.pid - other.pid;
  };
  return [...list].sort(order);
}

function sortBy(name) {
  const column = COLUMNS.find((column) => column.name === name);
  state.descending = state.sort === name ? !state.descending : Boolean(column.number || column.bar);
  state.sort = name;
  if (state.envelope) showProcesses();
}

function processRow(process) {
  const row = element("tr", { "data-pid": process.pid, onclick: (event) => event.target.closest("button") ?? openProcess(process.pid) });
  for (const column of COLUMNS) {
    const inside =
      column.name === "pid"
        ? element("button", { class: `open ${colourOf(process)}`, onclick: () => openProcess(process.pid) })
        : column.bar
          ? element("div", { class: "bar" })
          : null;
    row.append(element("td", { class: classes(column) }, inside));
  }
  return row;
}

function showProcess(row, process, most) {
  COLUMNS.forEach((column, at) => {
    const cell = row.children[at];
    if (column.bar) showKinds(cell.firstElementChild, process, most);
    else write(column.name === "pid" ? cell.firstElementChild : cell, column.text(process));
    if (column.wide) mark(cell, "title", plain(process.command));
    if (column.name === "failed") mark(cell, "data-bad", failedOf(process) > 0);
  });
  mark(row, "aria-current", state.open === process.pid);
}

function showKinds(node, process, most) {
  const parts = KINDS.map((kind) => [kind, sum(process.gpus, (gpu) => gpu.kinds[kind]?.driver_allocated_bytes) ?? 0]);
  bar(node, parts.map(([kind, held]) => [kind, held, `${kind} ${bytes(held)}`]), most);
}

function showProcesses() {
  const { data } = state.envelope;
  const all = living();
  const list = sorted(all.filter(matches));
  const most = Math.max(1, ...all.map((process) => liveOf(process) ?? 0));
  keyed(ui.rows, list, (process) => `${process.pid} ${process.observed_since}`, processRow, (row, process) => showProcess(row, process, most));
  for (const button of ui.heads.querySelectorAll("button")) {
    const isChosen = button.dataset.sort === state.sort;
    mark(button.parentElement, "aria-sort", isChosen ? (state.descending ? "descending" : "ascending") : null);
  }
  const besides = [];
  if (!all.length) besides.push("No process holds GPU memory.");
  else if (!list.length) besides.push("No process matches the filter.");
  if (data.hidden?.processes) besides.push(`${count(data.hidden.processes)} processes of other users hold ${bytes(sum(data.hidden.gpus, (gpu) => gpu.used_bytes))} besides.`);
  if (data.left_out_processes) besides.push(`${count(data.left_out_processes)} smaller processes are not listed: memwatch ps has all.`);
  write(ui.besides, besides.join(" "));
}

function openProcess(pid) {
  const before = state.open;
  state.open = pid;
  history.replaceState(null, "", pid === null ? location.pathname : `#${pid}`);
  showPanel();
  if (state.envelope) showProcesses();
  if (pid === null) ui.rows.querySelector(`[data-pid="${before}"] button`)?.focus();
}

function showPanel() {
  const process = state.envelope?.data.processes.find((process) => process.pid === state.open && process.ended === null);
  document.body.classList.toggle("has-panel", Boolean(process));
  if (process) panel.show(process, state.envelope);
  else panel.clear();
}

// --- Keys

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = event.target === ui.filter;
  if (event.key === "Escape") {
    if (isTyping && ui.filter.value) {
      ui.filter.value = "";
      ui.filter.dispatchEvent(new Event("input"));
    } else if (state.open !== null) openProcess(null);
    else ui.filter.blur();
  } else if (event.key === "/" && !isTyping) {
    ui.filter.focus();
    event.preventDefault();
  } else if (["ArrowDown", "ArrowUp", "j", "k"].includes(event.key) && !(isTyping && event.key.length === 1)) {
    const buttons = [...ui.rows.querySelectorAll("button.open")];
    const at = buttons.indexOf(document.activeElement);
    const isInTable = at >= 0 || isTyping || event.key.length === 1;
    const next = buttons[at + (event.key === "ArrowDown" || event.key === "j" ? 1 : -1)];
    if (!isInTable || !next) return;
    next.focus();
    if (state.open !== null) openProcess(Number(next.textContent));
    event.preventDefault();
  }
});

// --- Events

function take(envelope) {
  state.envelope = envelope;
  state.heard = Date.now();
  const time = Date.parse(envelope.time) / 1000;
  for (const gpu of envelope.data.gpus) gpuCourse(gpu.uuid).add(time, [gpu.used_bytes, gpu.driver_allocated_bytes]);
  note(envelope);
  keyed(ui.gpus, envelope.data.gpus, (gpu) => gpu.uuid, gpuCard, showGpu);
  const list = notes();
  ui.notes.hidden = list.length === 0;
  keyed(ui.notes, list, ([, text]) => text, ([kind, text]) => element("li", { class: kind || null }, text), () => {});
  showProcesses();
  showWorkloads();
  showFailures();
  showPanel();
  document.title = `${envelope.data.gpus.map((gpu) => percent(gpu.used_bytes, gpu.total_bytes)).join(" ")} · ${plain(envelope.host)} · memwatch`;
  tell("live", `live · ${timeOfDay(envelope.time)}`);
}

function takeTrail({ times, gpus }) {
  trails.clear();
  for (const gpu of gpus) {
    const course = gpuCourse(gpu.uuid);
    times.forEach((time, at) => course.add(time, [gpu.used_bytes[at], gpu.driver_allocated_bytes[at]]));
  }
}

function tell(kind, text) {
  ui.state.className = kind;
  write(ui.state, text);
}

const events = new EventSource("events");
events.addEventListener("snapshot", (event) => take(JSON.parse(event.data)));
events.addEventListener("trail", (event) => takeTrail(JSON.parse(event.data)));
events.addEventListener("ended", () => {
  events.close();
  tell("gone", "this page has ended: memwatch web opens another");
});
events.addEventListener("error", () => {
  const isOver = events.readyState === EventSource.CLOSED;
  tell("gone", isOver ? "this page has ended: memwatch web opens another" : "the agent is not reached, trying again");
});
setInterval(() => {
  if (events.readyState === EventSource.OPEN && state.heard && Date.now() - state.heard > SILENCE) tell("gone", "the agent has not answered for a while");
}, 1000);

const asked = Number(location.hash.slice(1));
if (asked) state.open = asked;
