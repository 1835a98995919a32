// Draws the parts of schemas/live/v1.json. Everything that was read becomes text, never markup.
const at = (id) => document.getElementById(id);
const SVG_W = 240;
const SVG_H = 60;
const KEPT = 120;
const MANY = 16; // engines that have room above everything else
const engines = new Map(); // id -> {role, card}
const history = [];
let clock = { now: 0, at: 0 };
let before = null;
let links = { transport: "", pairs: [] };
let matrix = "";

function el(tag, name = "", ...inner) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...inner);
  return made;
}

function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const percent = (share) => (share === null ? "–" : `${Math.round(share * 100)} %`);
const many = (n, one) => `${n} ${one}${n === 1 ? "" : "s"}`;
const number = (n) => n.toLocaleString("en");

function span(s) {
  if (s < 60) return `${Math.max(0, Math.floor(s))} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  return s < 86400 ? `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min` : `${Math.floor(s / 86400)} d`;
}

const byName = (a, b) => a.localeCompare(b, "en", { numeric: true });

const nowT = () => clock.now + (Date.now() - clock.at) / 1000;

function age(t) {
  const time = el("time");
  time.dataset.t = t;
  time.textContent = `${span(nowT() - t)} ago`;
  return time;
}

// Ages, each second.
export function tick() {
  if (!clock.at) return;
  for (const time of document.querySelectorAll("time[data-t]")) set(time, `${span(nowT() - Number(time.dataset.t))} ago`);
}

export function draw(part) {
  ({ state: drawState, decisions: drawDecisions, changes: drawChanges, links: drawLinks })[part.part]?.(part);
}

function meter(name, cls) {
  const fill = el("i");
  const bar = el("div", "bar", fill);
  bar.setAttribute("role", "meter");
  bar.setAttribute("aria-label", name);
  bar.setAttribute("aria-valuemin", "0");
  const value = el("span", "value");
  return { row: el("div", `meter ${cls}`, el("span", "name", name), bar, value), bar, fill, value };
}

// `full`: the value at the bar's end; `target`: where the mark stands.
function setMeter(shown, value, text, full, target = null, over = false) {
  shown.fill.style.width = `${Math.min(100, (100 * (value ?? 0)) / full)}%`;
  shown.bar.setAttribute("aria-valuenow", String(Math.min(value ?? 0, full)));
  shown.bar.setAttribute("aria-valuemax", String(full));
  shown.bar.setAttribute("aria-valuetext", text);
  set(shown.value, text);
  shown.row.classList.toggle("over", over);
  if (target === null) return;
  shown.mark ??= shown.bar.appendChild(el("u"));
  shown.mark.style.left = `${(100 * target) / full}%`;
}

const loads = { prefill: meter("prefill", "prefill"), decode: meter("decode", "decode") };
const attained = meter("in SLO", "");
at("loads").append(loads.prefill.row, loads.decode.row);
at("attainment").append(attained.row);
at("moves").dataset.none = "no engine has been moved yet";
at("held").dataset.none = "nothing was held back";
at("changes").dataset.none = "none yet";

function drawState(part) {
  const state = part.state;
  clock = { now: part.now_t, at: Date.now() };
  document.title = `${state.split.prefill}P${state.split.decode}D · ${state.fleet} · Narwhal`;
  set(at("fleet"), state.fleet);
  set(at("model"), state.model);
  set(at("split"), `${state.split.prefill} prefill, ${state.split.decode} decode`);
  drawEngines(state.engines);
  for (const [phase, shown] of Object.entries(loads)) {
    const load = state.load[phase];
    setMeter(shown, load, load === null ? "–" : load.toFixed(2), 2, 1, load > 1);
  }
  const share = state.attainment_60s;
  setMeter(attained, share, percent(share), 1, part.attainment, share !== null && share < part.attainment);
  drawMatrix();
  drawHistory(state.load);
  drawFigures(part);
  drawNotices(part);
  drawRouter(part);
}

function drawHistory(load) {
  history.push(load);
  if (history.length > KEPT) history.shift();
  for (const phase of ["prefill", "decode"]) {
    const points = history.flatMap((one, index) => {
      const x = SVG_W * (1 - (history.length - 1 - index) / (KEPT - 1));
      return one[phase] === null ? [] : [`${x.toFixed(1)},${(SVG_H - 2 - (Math.min(one[phase], 2) / 2) * (SVG_H - 4)).toFixed(1)}`];
    });
    document.querySelector(`#history polyline.${phase}`).setAttribute("points", points.join(" "));
  }
}

function newCard(id) {
  const badge = el("span", "badge");
  badge.setAttribute("aria-hidden", "true");
  const tags = el("span");
  const work = el("p");
  const why = el("p", "why");
  const kv = meter("KV", "");
  return { card: el("li", "engine", el("header", "", badge, el("b", "", id), tags), work, kv.row, why), badge, tags, work, why, kv };
}

function drawEngines(rows) {
  const seen = new Set();
  const placed = { prefill: [], decode: [] };
  at("main").classList.toggle("many", rows.length > MANY);
  for (const engine of rows.toSorted((a, b) => byName(a.id, b.id))) {
    seen.add(engine.id);
    let known = engines.get(engine.id);
    if (!known) engines.set(engine.id, (known = newCard(engine.id)));
    const moved = known.role !== undefined && known.role !== engine.role;
    known.role = engine.role;
    known.live = ["live", "suspected", "silent"].includes(engine.state);
    drawEngine(known, engine);
    placed[engine.role].push(known.card);
    if (moved) {
      known.card.classList.add("moved");
      setTimeout(() => known.card.classList.remove("moved"), 2500);
    }
  }
  for (const id of engines.keys()) if (!seen.has(id)) engines.delete(id);
  for (const role of ["prefill", "decode"]) {
    const list = at(role);
    if (list.children.length !== placed[role].length || placed[role].some((card, n) => list.children[n] !== card))
      list.replaceChildren(...placed[role]);
    set(at(`n-${role}`), many(placed[role].length, "engine"));
  }
}

function tagsOf(engine) {
  const tags = [];
  if (engine.state === "unadmitted") tags.push(["loading", "warn"]);
  else if (engine.state !== "live") tags.push([engine.state, ["ejected", "silent", "suspected"].includes(engine.state) ? "bad" : "warn"]);
  if (engine.pin) tags.push(["pinned", ""]);
  if (engine.probation) tags.push(["probation", "warn"]);
  if (engine.lone) tags.push(["both legs", "warn"]);
  if (engine.learning) tags.push(["learning", ""]);
  return tags;
}

function drawEngine(shown, engine) {
  shown.badge.className = `badge ${engine.role}`;
  set(shown.badge, engine.role === "prefill" ? "P" : "D");
  const tags = tagsOf(engine);
  const key = JSON.stringify(tags);
  if (shown.key !== key) {
    shown.key = key;
    shown.tags.replaceChildren(...tags.map(([word, cls]) => el("span", `tag ${cls}`, word)));
  }
  shown.card.classList.toggle("trouble", tags.some(([, cls]) => cls === "bad"));
  const work = engine.role === "prefill" || engine.prefills ? [`${many(engine.prefills, "prompt")}, ${engine.backlog_s.toFixed(1)} s`] : [];
  if (engine.role === "decode" || engine.residents) work.push(`${many(engine.residents, "stream")}, ${percent(engine.occupancy)} full`);
  set(shown.work, work.join(" · "));
  const share = engine.kv_tokens / engine.kv_capacity_tokens;
  setMeter(shown.kv, share, percent(share), 1);
  shown.kv.bar.title = `${number(engine.kv_tokens)} of ${number(engine.kv_capacity_tokens)} KV tokens`;
  const drain = engine.drain ? Object.entries(engine.drain).filter(([, left]) => typeof left === "number" && left > 0) : [];
  set(shown.why, [engine.reason === `as ${engine.role}` ? "" : engine.reason, ...drain.map(([what, left]) => `${what.replaceAll("_", " ")} ${Math.ceil(left)}`)].filter(Boolean).join("; "));
}

function pairs(list, rows) {
  rows.forEach(([term, text, bad], index) => {
    const item = list.children[index] ?? list.appendChild(el("div", "", el("dt"), el("dd")));
    set(item.firstChild, term);
    set(item.lastChild, text);
    item.lastChild.classList.toggle("bad", Boolean(bad));
  });
  while (list.children.length > rows.length) list.lastChild.remove();
}

function drawFigures(part) {
  const { counts, queue, seats_waiting } = part.state;
  const earlier = before;
  before = { t: part.now_t, counts };
  const span_s = earlier ? part.now_t - earlier.t : 0;
  const rate = (name) => (span_s > 0 && counts[name] >= earlier.counts[name] ? ((counts[name] - earlier.counts[name]) / span_s).toFixed(1) : "–");
  pairs(at("figures"), [
    ["in flight", number(part.requests)],
    ["queue", queue.requests ? `${number(queue.requests)}, ${queue.oldest_s.toFixed(1)} s` : "0"],
    ["wait for a seat", number(seats_waiting)],
    ["offered / s", rate("offered")],
    ["served / s", rate("served")],
    ["served", number(counts.served)],
    ["refused", number(counts.refused), rate("refused") > 0],
    ["failed or cut", number(counts.failed + counts.cut), rate("failed") > 0 || rate("cut") > 0],
    ["TTFT, TPOT target", `${part.ttft_s} s, ${part.tpot_s} s`],
  ]);
}

function noticesOf({ state }) {
  const lease = state.lease;
  const said = [];
  if (lease && lease.standing === "standby") said.push([`This router stands by${lease.leader ? `; the ${lease.leader_is || "other one"} on ${lease.leader} leads` : ""}.`, ""]);
  if (lease && lease.standing === "deposed") said.push([`This router led until another took over${lease.leader ? `: ask ${lease.leader}` : ""}.`, "bad"]);
  if (lease && lease.standing === "leader" && !lease.proven) said.push(["The router cannot prove that it leads: roles stay as they are.", "bad"]);
  if (lease && lease.trouble) said.push([`Lease: ${lease.trouble}`, "bad"]);
  if (state.degraded) said.push([`Degraded: ${state.degraded}`, "bad"]);
  if (state.hold.on) said.push([`Moves are on hold: ${state.hold.reason || "no reason given"}`, ""]);
  if (state.journal.error) said.push([`The journal cannot be written: ${state.journal.error}`, "bad"]);
  return said;
}

function drawNotices(part) {
  const said = noticesOf(part);
  const key = JSON.stringify(said);
  const list = at("notices");
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...said.map(([text, cls]) => el("li", cls, text)));
}

function leaseWords(lease) {
  if (!lease) return "alone, needs none";
  const words = [lease.standing, lease.proven ? "proven" : "unproven", `epoch ${lease.epoch}`];
  if (lease.standing === "leader") words.push(many(lease.followers, "follower"));
  else if (lease.lag_s !== null) words.push(`${lease.lag_s.toFixed(1)} s behind`);
  return words.join(", ");
}

function drawRouter(part) {
  const state = part.state;
  pairs(at("router"), [
    ["version", part.version],
    ["policy", state.policy],
    ["up", span(state.uptime_s)],
    ["role changes", number(state.epoch)],
    ["lease", leaseWords(state.lease)],
    ["workers", state.workers.length ? number(state.workers.length) : "one process"],
    ["retried, went on", `${number(state.went_on.retried)}, ${number(state.went_on.continued)}`],
    ["journal lines lost", number(state.journal.dropped_lines), state.journal.dropped_lines > 0],
  ]);
}

const roleWord = (role) => el("span", `role ${role}`, role);

function moveWords(decision) {
  const words = el("span");
  decision.moves.forEach((move, index) => {
    if (index) words.append("; ");
    words.append(el("b", "", move.engine), " ", roleWord(move.source), " → ", roleWord(move.target));
  });
  if (!decision.moves.length) words.append(`from ${decision.prefill} prefill, ${decision.decode} decode`);
  return words;
}

function candidates(decision) {
  if (!decision.candidates.length) return "";
  const row = (cell, cells) => el("tr", "", ...cells.map((text) => el(cell, "", text)));
  const body = decision.candidates.map((one, index) =>
    row("td", [`${one.prefill}P${one.decode}D${index ? "" : " (then)"}`, ...["ttft", "tpot", "queue", "score"].map((name) => one[name].toFixed(2))]),
  );
  const table = el("table", "", el("thead", "", row("th", ["split", "TTFT", "TPOT", "seats", "score"])), el("tbody", "", ...body));
  return el("details", "", el("summary", "", `decision ${decision.id}, by ${decision.trigger}: splits`), el("div", "scroll", table));
}

function decisionRow(decision) {
  const failed = decision.guards.filter((guard) => !guard.passed && !decision.reason.includes(`held by ${guard.name}`));
  const guards = failed.length
    ? el("span", "why", `also held by ${failed.map((g) => `${g.name}${g.engine ? ` (${g.engine})` : ""}: ${round(g.value)}, limit ${round(g.limit)}`).join("; ")}`)
    : "";
  const advised = decision.outcome === "advised" ? " (advised, not made)" : "";
  return el("li", "", age(decision.t), moveWords(decision), advised, el("span", "why", decision.reason), guards, candidates(decision));
}

const round = (value) => (Math.abs(value) >= 1e9 ? "never" : Number(value.toPrecision(4)).toString());
let lastMove = null;

function drawDecisions(part) {
  const newest = part.moves.at(-1);
  if (newest && lastMove !== null && newest.id > lastMove) {
    for (const move of newest.moves) at("said").append(el("span", "", `${move.engine} moves from ${move.source} to ${move.target}: ${newest.reason}. `));
    while (at("said").children.length > 8) at("said").firstChild.remove();
  }
  lastMove = newest ? newest.id : -1;
  const open = new Set([...document.querySelectorAll("#moves details[open], #held details[open]")].map((one) => one.textContent));
  at("moves").replaceChildren(...part.moves.toReversed().map(decisionRow));
  at("held").replaceChildren(...part.held.toReversed().map(decisionRow));
  for (const one of document.querySelectorAll("#moves details, #held details")) one.open = open.has(one.textContent);
}

function drawChanges(part) {
  at("changes").replaceChildren(
    ...part.changes.toReversed().map((row) => {
      const who = row.type === "pair" ? `${row.producer} > ${row.consumer}` : row.engine;
      return el("li", "", age(row.t), el("b", "", who), ` ${row.change}`, el("span", "why", row.reason));
    }),
  );
}

const SIGNS = { in: "✓", out: "✕", doubtful: "?", idle: "·" };
const WORDS = { in: "carries handoffs", out: "out", doubtful: "failed lately, others are preferred", idle: "an engine of it has no work now" };

function drawLinks(part) {
  links = part;
  set(at("transport"), part.transport);
  drawMatrix();
  const bad = part.pairs.filter((pair) => pair.state !== "in");
  at("links-out").replaceChildren(
    ...bad.map((pair) => el("li", "", el("b", "", `${pair.producer} > ${pair.consumer}`), ` ${pair.state === "out" ? "quarantined" : WORDS[pair.state]}`, el("span", "why", pair.reason))),
  );
}

// Every prefill engine with every decode engine; drawn again when a role, a standing or a pair is another.
function drawMatrix() {
  const rows = [...engines.entries()].sort(([a], [b]) => byName(a, b));
  const key = JSON.stringify([links, rows.map(([id, known]) => [id, known.role, known.live])]);
  if (key === matrix) return;
  matrix = key;
  const of = (role) => rows.filter(([, known]) => known.role === role);
  const listed = new Map(links.pairs.map((pair) => [`${pair.producer} ${pair.consumer}`, pair]));
  const counts = { in: 0, doubtful: 0, out: 0, idle: 0 };
  const body = of("prefill").map(([from, producer]) => {
    const cells = of("decode").map(([to, consumer]) => {
      const pair = listed.get(`${from} ${to}`) ?? { producer: from, consumer: to, state: "in", reason: "", transport: links.transport };
      const state = pair.state !== "out" && !(producer.live && consumer.live) ? "idle" : pair.state;
      counts[state] += 1;
      return linkCell({ ...pair, state }, pair.transport !== links.transport);
    });
    return el("tr", "", el("th", "", from), ...cells);
  });
  const sums = Object.keys(counts).filter((state) => counts[state]).map((state) => `${SIGNS[state]} ${counts[state]} ${state}`);
  set(at("links-sum"), sums.join(", ") || "no pair is in use");
  const head = el("tr", "", el("th", "", "from \\ to"), ...of("decode").map(([id]) => el("th", "", id)));
  at("matrix").replaceChildren(...(sums.length ? [el("table", "", el("thead", "", head), el("tbody", "", ...body))] : []));
}

function linkCell(row, named) {
  const cell = el("td", row.state, named && row.transport ? `${SIGNS[row.state]} ${row.transport}` : SIGNS[row.state]);
  const words = `${row.producer} to ${row.consumer}: ${WORDS[row.state]}${row.reason ? `, ${row.reason}` : ""}${row.transport ? `, by ${row.transport}` : ""}`;
  cell.title = words;
  cell.setAttribute("aria-label", words);
  return cell;
}
