// Memory over time: the course of each GPU and process as uPlot draws it.

import { bytes, shortBytes } from "./words.js";

/** So many points of a line are kept; then every other is forgotten. */
const POINTS = 1800;

/** Whether this memwatch was built with its plot library. */
export const CAN_PLOT = typeof window.uPlot === "function";

/** What stands in their place where it was not. */
export const WITHOUT_PLOTS = "This memwatch was built without its plot library: cargo xtask build installs it.";

/** Values of several lines at the same times. */
export class Course {
  constructor(lines) {
    this.data = [[], ...Array.from({ length: lines }, () => [])];
    this.step = 0;
  }

  add(time, values) {
    const times = this.data[0];
    if (times.length && time < times[times.length - 1] + this.step) return;
    times.push(time);
    values.forEach((value, line) => this.data[line + 1].push(value ?? null));
    if (times.length >= POINTS) {
      this.step = (2 * (time - times[0])) / POINTS;
      this.data = this.data.map((list) => list.filter((_, at) => at % 2 === 0));
    }
  }
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const letter = () => parseFloat(getComputedStyle(document.documentElement).fontSize);
const time = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

const drawn = new Set();

/** One plot within an element that has a width. */
export class Plot {
  /** `lines`: name, colour and whether it is filled; `most`: what the axis ends at, where that is fixed; `rows`: its height in lines of text. */
  constructor(host, lines, { most = null, rows = 8 } = {}) {
    Object.assign(this, { host, lines, most, rows, course: null, plot: null });
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(host);
    drawn.add(this);
  }

  show(course) {
    this.course = course;
    if (!CAN_PLOT || !this.host.clientWidth) return;
    if (this.plot) this.plot.setData(this.data());
    else this.draw();
  }

  draw() {
    this.plot?.destroy();
    this.plot = null;
    if (!this.course || !this.host.clientWidth) return;
    const grid = { stroke: colour("line"), width: 1 };
    const { fontFamily } = getComputedStyle(document.body);
    const em = letter();
    const font = `${Math.round(0.78 * em)}px ${fontFamily}`;
    const axis = { stroke: colour("soft"), font, grid, ticks: { show: false } };
    const most = this.most;
    const options = {
      width: this.host.clientWidth,
      height: Math.round(this.rows * em),
      padding: [8, 8, 0, 0],
      cursor: { y: false, points: { size: 6 }, drag: { x: true, y: false } },
      legend: { show: true, live: true },
      scales: { y: { range: (_, least, highest) => [0, most ?? Math.max(1, highest * 1.1)] } },
      axes: [
        { ...axis, size: Math.round(1.8 * em), space: 7 * em, values: (_, list) => list.map(time) },
        { ...axis, size: Math.round(4.4 * em), splits: (_, __, ___, highest) => splits(highest), values: (_, list) => list.map(shortBytes) },
      ],
      series: [
        { label: "at", value: (_, at) => (at === null ? "now" : time(at)) },
        ...this.lines.map(({ name, colour: own, filled, dashed }) => ({
          label: name,
          stroke: colour(own),
          width: 1.5,
          dash: dashed ? [5, 4] : undefined,
          fill: filled ? `${colour(own)}26` : undefined,
          points: { show: false },
          // Without a pointer over it a plot says what is now.
          value: (plot, value, line, at) => bytes(at === null ? plot.data[line][plot.data[line].length - 1] : value),
        })),
      ],
    };
    this.plot = new window.uPlot(options, this.data(), this.host);
  }

  /** As many lines as are drawn. */
  data() {
    return this.course.data.slice(0, this.lines.length + 1);
  }

  fit() {
    if (!this.host.clientWidth) return;
    if (this.plot) this.plot.setSize({ width: this.host.clientWidth, height: Math.round(this.rows * letter()) });
    else this.draw();
  }

  remove() {
    this.observer.disconnect();
    this.plot?.destroy();
    drawn.delete(this);
  }
}

/** Four lines or fewer, at whole powers of two. */
function splits(highest) {
  let step = 1;
  while (step * 4 < highest) step *= 2;
  const list = [];
  for (let at = 0; at <= highest; at += step) list.push(at);
  return list;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((plot) => plot.draw()));
