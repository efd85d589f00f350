"use strict";
// Two things need a script: choosing light or dark, and looking into single examples.
// Text from runs only ever becomes textContent, never markup.

const by = (id) => document.getElementById(id);

function make(tag, words, { className, title, ...attributes } = {}, children = []) {
  const element = document.createElement(tag);
  if (words !== null) element.textContent = words;
  if (className) element.className = className;
  if (title) element.title = title;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// --- Light and dark ---

const root = document.documentElement;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);

function nameTheme() {
  by("theme").textContent = isDark() ? "Light" : "Dark";
}

function remembered(value) {
  // Pages opened from disk may have no storage.
  try {
    if (value) localStorage.setItem("ppdbench-theme", value);
    return localStorage.getItem("ppdbench-theme");
  } catch {
    return null;
  }
}

function startTheme() {
  const stored = remembered();
  if (stored === "light" || stored === "dark") root.dataset.theme = stored;
  by("theme").hidden = false;
  by("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered(root.dataset.theme);
    nameTheme();
  });
  prefersDark.addEventListener("change", nameTheme);
  nameTheme();
}

// --- Examples ---

const RANKS = "0123456789abcdefghijklmnopqrstuvwxyz";
const MARKS = ["●", "○", "·", ""];
const CLASSES = ["rank 0: a match", "rank 1 to 2", "rank 3 to 9", "rank 10 or more"];
const ENDS = [0, 2, 9];
const rankClass = (rank) => ENDS.filter((end) => rank > end).length;
const shown = (rank) => (rank === RANKS.length - 1 ? `${rank} or more` : String(rank));

const ids = (run, number) => run.outputs[number] ?? [];
const word = (run, id) => (run.texts ? run.words[id] ?? "" : String(id));
const visible = (text) => text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥") || "∅";

const fixed = (value, digits) => (typeof value === "number" ? value.toFixed(digits) : "-");

function options(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, words]) => make("option", words, { value })));
  if (entries.some(([value]) => value === chosen)) select.value = chosen;
  select.parentElement.hidden = entries.length < 2;
}

function verdictOf(example) {
  const order = ["failed", "mismatch", "tie", "inexact"];
  const found = example.entries.map((entry) => entry.verdict);
  return order.find((verdict) => found.includes(verdict)) ?? found[0];
}

// Which step made each token: the prefill makes the first, every step its drafts and one more.
function stepsOf(entry, length) {
  const made = [{ step: 0, kept: false }];
  (entry.accepted ?? []).forEach((accepted, index) => {
    for (let i = 0; i <= accepted; i += 1) made.push({ step: index + 1, kept: i < accepted });
  });
  while (made.length < length) made.push({ step: null, kept: false });
  return made.slice(0, length);
}

function hintOf(entry, place, made) {
  if (made.step === 0) return `token ${place + 1}: from the prefill`;
  if (made.step === null) return `token ${place + 1}`;
  const accepted = entry.accepted[made.step - 1];
  const proposed = entry.proposed?.[made.step - 1] ?? 0;
  return `token ${place + 1}, step ${made.step}: ${accepted} of ${proposed} drafts accepted`;
}

function tokenText(run, entry, output, { from = 0, to = output.length, mark = null } = {}) {
  const made = stepsOf(entry, output.length);
  const spans = [];
  for (let place = from; place < Math.min(to, output.length); place += 1) {
    const ahead = entry.matches ? entry.matches[place - 1] === 1 : made[place].kept;
    const names = ["token", ahead && "kept", place === mark && "apart", !run.texts && "id"];
    const title = entry.matches
      ? `token ${place + 1}: ${ahead ? "had a head start" : "no head start"}`
      : hintOf(entry, place, made[place]);
    spans.push(make("span", word(run, output[place]), { className: names.filter(Boolean).join(" "), title }));
  }
  return make("p", null, { className: "text" }, spans);
}

function decodeSummary(run, example, chosen) {
  const head = ["method", "output", "tokens", "steps", "per step", "prefill ms", "decode ms"];
  const rows = example.entries.map((entry) => {
    const tokens = ids(run, entry.output).length;
    const steps = entry.accepted?.length ?? 0;
    const cells = [entry.verdict, tokens, steps, steps ? fixed((tokens - 1) / steps, 2) : "-",
      fixed(entry.prefill, 1), fixed(entry.steps, 1)];
    const name = make("th", entry.method, { scope: "row" });
    if (entry === chosen) name.append(" ←");
    return make("tr", null, {}, [name, ...cells.map((cell, i) => make("td", String(cell), { className: i ? "n" : "" }))]);
  });
  const heads = head.map((text, i) => make("th", text, { scope: "col", className: i > 1 ? "n" : "" }));
  return make("div", null, { className: "scroll", tabindex: "0", role: "region", "aria-label": "table: methods on this example" }, [
    make("table", null, {}, [
      make("caption", "Methods on this example"),
      make("thead", null, {}, [make("tr", null, {}, heads)]),
      make("tbody", null, {}, rows),
    ]),
  ]);
}

function difference(run, entry) {
  const ours = ids(run, entry.output);
  const theirs = ids(run, entry.greedy);
  const at = entry.at;
  const span = { from: Math.max(0, at - 12), to: at + 12, mark: at };
  const names = { tie: "a tie", mismatch: "a mismatch", inexact: "inexact" };
  const why = typeof entry.margin === "number"
    ? ` Greedy's two best logits are ${entry.margin.toExponential(2)} apart; rounding between the two ways of computing them is ${Number(entry.discrepancy).toExponential(2)}.`
    : "";
  return [
    make("h4", "First difference from greedy"),
    make("p", `At token ${at + 1} of ${ours.length}: ${names[entry.verdict] ?? entry.verdict}.${why}`),
    make("p", "greedy", { className: "note" }),
    tokenText(run, {}, theirs, span),
    make("p", entry.method, { className: "note" }),
    tokenText(run, {}, ours, span),
  ];
}

function decodeView(run, example, entry) {
  const parts = [decodeSummary(run, example, entry)];
  if (entry.error) return [...parts, make("p", `Failed: ${entry.error}`)];
  if (entry.at !== undefined) parts.push(...difference(run, entry));
  const kept = entry.matches ? "token with a head start" : "accepted draft";
  parts.push(
    make("h4", `Output of ${entry.method}`),
    make("p", null, { className: "keys" }, [
      make("span", null, {}, [make("span", "token", { className: "token kept" }), ` ${kept}`]),
      make("span", "plain: the model's own token"),
    ]),
    tokenText(run, entry, ids(run, entry.output)),
  );
  return parts;
}

function gridHead(run, output) {
  const cells = output.map((id, place) => make("th", visible(word(run, id)), { scope: "col", title: `token ${place + 1}` }));
  return make("thead", null, {}, [make("tr", null, {}, [make("th", "layer", { scope: "col" }), ...cells])]);
}

function gridRow(run, entry, layer, ranks) {
  const own = entry.own?.[layer] === undefined ? null : ids(run, entry.own[layer]);
  const cells = [...ranks].map((digit, place) => {
    const rank = RANKS.indexOf(digit);
    const kind = rankClass(rank);
    const said = own ? visible(word(run, own[place])) : "";
    const text = own ? `${MARKS[kind]}${said}` : MARKS[kind];
    const title = `layer ${layer}, token ${place + 1}: rank ${shown(rank)}${own ? `, its own choice ${said}` : ""}`;
    return make("td", text, { className: `r${kind}`, title });
  });
  return make("tr", null, {}, [make("th", layer, { scope: "row" }), ...cells]);
}

function grid(run, entry, layers, name) {
  const output = ids(run, entry.output);
  const rows = Object.keys(layers).map(Number).sort((a, b) => a - b)
    .map((layer) => gridRow(run, name === "own head" ? entry : {}, String(layer), layers[layer]));
  return make("div", null, { className: "scroll", tabindex: "0", role: "region", "aria-label": `token grid, ${name}` }, [
    make("table", null, { className: "grid" }, [
      make("caption", `Rank of the final token in each layer, ${name}`),
      gridHead(run, output),
      make("tbody", null, {}, rows),
    ]),
  ]);
}

function probeView(run, example, entry) {
  const keys = CLASSES.map((words, kind) => make("span", null, {}, [
    make("span", MARKS[kind] || "\u00a0", { className: `swatch r${kind}` }), words,
  ]));
  const parts = [
    tokenText(run, {}, ids(run, entry.output)),
    make("p", null, { className: "keys" }, keys),
    grid(run, entry, entry.ranks, "own head"),
  ];
  if (entry.own) parts.push(make("p", "Cells name the layer's own first choice.", { className: "note" }));
  if (entry.trained) parts.push(grid(run, entry, entry.trained, "trained heads"));
  return parts;
}

function asked(example) {
  const parts = [];
  const folded = (title, text) => make("details", null, {}, [
    make("summary", title), make("p", text, { className: "text" }),
  ]);
  if (example.prompt) parts.push(folded("Prompt", example.prompt));
  if (example.reference) parts.push(folded("Reference answer", example.reference));
  if (example.cut) parts.push(make("p", `${example.cut} tokens of the prompt were cut.`, { className: "note" }));
  return parts;
}

function startExamples() {
  const runs = JSON.parse(by("examples-data").textContent);
  if (!runs.length) return;
  const [runBox, kindBox, exampleBox, methodBox] = ["run", "kind", "example", "method"].map((name) => by(`pick-${name}`));
  let listed = [];

  const run = () => runs[Number(runBox.value)];
  const example = () => run().examples[Number(exampleBox.value)];
  const nameOf = (entry) => (run().probe ? entry.target : entry.method);

  function show() {
    const [current, chosen] = [example(), Number(methodBox.value || 0)];
    const entry = current.entries[chosen] ?? current.entries[0];
    const view = run().probe ? probeView : decodeView;
    by("view").replaceChildren(
      make("h3", `${current.task}, example ${current.id}`), ...asked(current), ...view(run(), current, entry),
    );
    const place = listed.indexOf(exampleBox.value);
    by("previous").disabled = place <= 0;
    by("next").disabled = place >= listed.length - 1;
  }

  function chooseExample() {
    const before = methodBox.selectedOptions[0]?.textContent;
    const entries = example().entries.map((entry, i) => [String(i), nameOf(entry)]);
    const flagged = example().entries.findIndex((entry) => entry.verdict === verdictOf(example()) && entry.verdict !== "identical");
    const same = entries.find(([, words]) => words === before);
    options(methodBox, entries, kindBox.value !== "" && flagged >= 0 ? String(flagged) : same?.[0]);
    show();
  }

  function chooseKind() {
    const chosen = run().examples.map((entry, i) => [String(i), entry])
      .filter(([, entry]) => !kindBox.value || verdictOf(entry) === kindBox.value);
    listed = chosen.map(([value]) => value);
    options(exampleBox, chosen.map(([value, entry]) => [value, `${entry.task} ${entry.id}`]));
    chooseExample();
  }

  function chooseRun() {
    const kinds = [...new Set(run().examples.map(verdictOf))].filter(Boolean);
    options(kindBox, [["", "all"], ...kinds.map((kind) => [kind, kind])]);
    kindBox.parentElement.hidden = kinds.length < 2;
    const { examples, total } = run();
    by("left-out").textContent = examples.length < total
      ? `${examples.length} of ${total} examples are in this page, those out of the ordinary first; all are in the run's samples.jsonl.`
      : "";
    if (!run().texts) by("left-out").textContent += " The run's tokenizer is not at hand, so tokens are shown as their ids.";
    chooseKind();
  }

  function step(by_) {
    exampleBox.value = listed[listed.indexOf(exampleBox.value) + by_];
    chooseExample();
  }

  options(runBox, runs.map((entry, i) => [String(i), entry.name]));
  runBox.addEventListener("change", chooseRun);
  kindBox.addEventListener("change", chooseKind);
  exampleBox.addEventListener("change", chooseExample);
  methodBox.addEventListener("change", show);
  by("previous").addEventListener("click", () => step(-1));
  by("next").addEventListener("click", () => step(1));
  by("explorer").hidden = false;
  chooseRun();
}

startTheme();
if (by("examples-data")) startExamples();
