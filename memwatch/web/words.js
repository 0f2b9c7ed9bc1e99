// Numbers and names as memwatch writes them on a terminal. What is not known is "-", never 0.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
export const UNKNOWN = "-";

/** `512.0 MiB`, `78.95 GiB`: binary units, two decimals from GiB on. */
export function bytes(number) {
  if (number === null || number === undefined) return UNKNOWN;
  let size = Math.abs(number);
  let unit = 0;
  while (unit + 1 < UNITS.length && Number(size.toFixed(unit < 3 ? 1 : 2)) >= 1024) {
    size /= 1024;
    unit += 1;
  }
  const text = unit === 0 ? String(Math.round(size)) : size.toFixed(unit < 3 ? 1 : 2);
  return `${number < 0 ? "−" : ""}${text} ${UNITS[unit]}`;
}

/** An axis has no room for decimals: `64 GiB`. */
export function shortBytes(number) {
  return bytes(number).replace(/\.0+ /, " ");
}

export function count(number) {
  return number === null || number === undefined ? UNKNOWN : number.toLocaleString("en-US");
}

export function rate(number) {
  if (number === null || number === undefined) return UNKNOWN;
  return number >= 10 ? count(Math.round(number)) : number.toFixed(1);
}

export function percent(part, whole) {
  return part === null || part === undefined || !whole ? UNKNOWN : `${((100 * part) / whole).toFixed(0)} %`;
}

/** `3 h 05 min`, `12 min`, `40 s`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  const two = (number) => String(number).padStart(2, "0");
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(whole / 86400)} d ${two(Math.floor((whole % 86400) / 3600))} h`;
}

/** Since an RFC 3339 time, by the machine's clock and not the browser's. */
export function since(time, now) {
  return time ? duration((Date.parse(now) - Date.parse(time)) / 1000) : UNKNOWN;
}

export function timeOfDay(time) {
  return new Date(time).toLocaleTimeString("en-GB");
}

const LETTERS = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u115f\u1160\u2800\u3164\uffa0]/gu;

/** Text of strangers: what hides or turns a line around is written as its number. */
export function plain(text) {
  return (text ?? "").replace(LETTERS, (letter) => `\\u{${letter.codePointAt(0).toString(16)}}`);
}

/** The strongest owner in a few words: a job, a pod's container, a container, a service. */
export function workload(process) {
  const { slurm, pod, container, unit } = process;
  const inside = container && (container.name ?? container.id.slice(0, 12));
  if (slurm) return plain(`job ${slurm.job_id ?? slurm.sluid ?? UNKNOWN}`);
  if (pod) {
    const name = pod.name ? (pod.namespace ? `${pod.namespace}/${pod.name}` : pod.name) : `pod ${pod.uid.slice(0, 12)}`;
    return plain([name, pod.container ?? inside].filter(Boolean).join("/"));
  }
  return plain(inside ?? unit ?? "");
}

/** What a workload of the list is called. */
export function workloadName(workload) {
  const { kind, namespace, pod, container, slurm_job: job, unit } = workload;
  if (job) return plain(`job ${job}`);
  const parts = [namespace, pod, container].filter(Boolean);
  return plain(parts.join("/") || unit || kind);
}

/** The number of a GPU as NVML and people use it: `0`, or `0:1` for an instance. */
export function gpuNumber(gpus, uuid) {
  const gpu = gpus.find((gpu) => gpu.uuid === uuid);
  if (!gpu) return UNKNOWN;
  return gpu.mig ? `${gpu.nvml_index}:${gpu.mig.index}` : String(gpu.nvml_index);
}

/** Kinds that are the GPU's own memory, in the order of all bars; each has a colour of this name. */
export const KINDS = ["device", "pool", "physical", "array"];

const VERDICTS = { leak: "leaks", slow: "grows" };

export function verdict(name) {
  return VERDICTS[name] ?? name;
}
