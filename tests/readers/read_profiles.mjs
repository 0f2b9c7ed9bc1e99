// Opens exported files with the programs that they are for, and prints what those have understood, as JSON.
//
//     node read_profiles.mjs NODE_MODULES FILE…
//
// Every FILE is given to the importer of speedscope, and one that ends in .pb.gz to pprof-format, too.

import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import vm from "node:vm";
import zlib from "node:zlib";

const [modules, ...files] = process.argv.slice(2);

// speedscope is published as a program for browsers: one script, whose importer is made visible here. Where it draws its page it fails, since there is
// no page; by then the importer is there.
function speedscopesImporter() {
  const folder = path.join(modules, "speedscope/dist/release");
  const script = fs.readdirSync(folder).find((name) => /^speedscope-\w+\.js$/.test(name));
  const code = fs.readFileSync(path.join(folder, script), "utf8");
  const importer = code.match(/async function (\w+)\(\w+,\w+\)\{return\(await \w+\)\.importProfilesFromArrayBuffer\(/);
  const page = new Proxy(function () {}, {
    get: (_, name) => (name === Symbol.toPrimitive ? () => "" : page),
    apply: () => page,
    construct: () => page,
    set: () => true,
  });
  const nothing = () => {};
  const browser = {
    addEventListener: nothing, document: page, localStorage: page, location: { hash: "", protocol: "file:" }, matchMedia: () => page,
    requestAnimationFrame: nothing, window: globalThis,
  };
  for (const [name, value] of Object.entries(browser)) Object.defineProperty(globalThis, name, { value, configurable: true });
  try {
    vm.runInThisContext(`${code.slice(0, importer.index)}globalThis.importFile=${importer[1]};${code.slice(importer.index)}`);
  } catch (error) {
    if (globalThis.importFile === undefined) throw error;
  }
  return globalThis.importFile;
}

async function seenBySpeedscope(importFile, file) {
  const bytes = fs.readFileSync(file);
  const group = await importFile(path.basename(file), bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
  if (group === null) throw new Error(`speedscope does not know what ${file} is`);
  const profiles = group.profiles.map((profile) => {
    const frames = [];
    profile.forEachFrame((frame) => frames.push({ name: frame.name, file: frame.file ?? null, line: frame.line ?? null }));
    return { name: profile.getName(), unit: profile.getWeightUnit(), total: profile.getTotalWeight(), shown: profile.formatValue(profile.getTotalWeight()), frames };
  });
  return { shown: group.profiles[group.indexToView].getName(), profiles };
}

function seenByPprof(file) {
  const { Profile } = createRequire(path.join(modules, "any.js"))("pprof-format");
  const profile = Profile.decode(zlib.gunzipSync(fs.readFileSync(file)));
  const text = (number) => profile.stringTable.strings[Number(number)];
  const types = profile.sampleType.map(({ type, unit }) => [text(type), text(unit)]);
  const sums = types.map((_, index) => Number(profile.sample.reduce((sum, sample) => sum + BigInt(sample.value[index]), 0n)));
  const labels = {};
  for (const { key, str } of profile.sample.flatMap((sample) => sample.label)) (labels[text(key)] ??= new Set()).add(text(str));
  const has = (list) => new Set(list.map(({ id }) => Number(id)));
  const [functions, locations, mappings] = [profile.function, profile.location, profile.mapping].map(has);
  const dangling = [
    profile.sample.flatMap((sample) => sample.locationId).filter((id) => !locations.has(Number(id))),
    profile.location.filter((location) => !mappings.has(Number(location.mappingId))),
    profile.location.flatMap((location) => location.line).filter((line) => !functions.has(Number(line.functionId))),
  ];
  return {
    types, sums, labels: Object.fromEntries(Object.entries(labels).map(([key, values]) => [key, [...values].sort()])),
    default_type: text(profile.defaultSampleType), period: [text(profile.periodType.type), text(profile.periodType.unit)],
    dangling: dangling.flat().length, functions: profile.function.map(({ name }) => text(name)),
  };
}

const say = console.log;
console.log = () => {};
const importFile = speedscopesImporter();
const seen = {};
for (const file of files) {
  seen[path.basename(file)] = { speedscope: await seenBySpeedscope(importFile, file), pprof: file.endsWith(".pb.gz") ? seenByPprof(file) : null };
}
say(JSON.stringify(seen));
// The page would wait for its user.
process.exit(0);
