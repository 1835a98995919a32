// The connection: reads the events, keeps on trying, says when what is shown is old. What is drawn is in draw.js.
import { draw, tick } from "./draw.js";

const SILENT_MS = 5000; // an event comes every second
const RETRY_MS = [500, 1000, 2000, 4000];
const HIDDEN_MS = 30000; // after this a tab that nobody sees lets go of its place
const at = (id) => document.getElementById(id);
let abort = new AbortController();
let tries = 0;
let heard = 0;
let retry = 0;
let hiding = 0;
let state = "wait";

function say(next, word, trouble) {
  if (state === "live" && next === "lost") at("said").append(line("The connection to the router is lost."));
  if (state === "lost" && next === "live") at("said").append(line("The router answers again."));
  state = next;
  at("link").dataset.state = next;
  at("link-word").textContent = word;
  if (at("lost").textContent !== trouble) at("lost").textContent = trouble;
  at("main").classList.toggle("stale", next === "lost");
}

export function line(text) {
  const row = document.createElement("span");
  row.textContent = text;
  return row;
}

function lost(why) {
  abort.abort();
  clearTimeout(retry);
  if (document.hidden && hiding < 0) return;
  const wait = RETRY_MS[Math.min(tries++, RETRY_MS.length - 1)];
  say("lost", "connection lost", `The connection to the router is lost (${why}). What is shown is old; it is tried again.`);
  retry = setTimeout(connect, wait);
}

function askToken(why) {
  abort.abort();
  say("lost", "no token", "");
  at("ask").hidden = false;
  at("ask-why").textContent = why;
  at("token").focus();
}

async function connect() {
  clearTimeout(retry);
  abort = new AbortController();
  const mine = abort;
  heard = Date.now();
  const token = sessionStorage.getItem("narwhal-token");
  try {
    const answer = await fetch("narwhal/events", {
      headers: token ? { authorization: `Bearer ${token}` } : {},
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: mine.signal,
    });
    if (answer.status === 401) {
      sessionStorage.removeItem("narwhal-token");
      return askToken(token ? "This token is not known here." : "");
    }
    if (!answer.ok) throw new Error((await reason(answer)) || `the router answered ${answer.status}`);
    at("ask").hidden = true;
    await read(answer.body.pipeThrough(new TextDecoderStream()).getReader(), mine);
    throw new Error("it ended the stream");
  } catch (error) {
    if (mine === abort && !mine.signal.aborted) lost(error instanceof TypeError ? "it cannot be reached" : error.message);
  }
}

async function reason(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return "";
  }
}

async function read(reader, mine) {
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done || mine !== abort) return;
    heard = Date.now();
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const data = text.slice(0, end).split("\n").filter((row) => row.startsWith("data: "));
      text = text.slice(end + 2);
      draw(JSON.parse(data.map((row) => row.slice(6)).join("\n")));
    }
    tries = 0;
    at("main").hidden = false;
    say("live", "live", "");
  }
}

setInterval(() => {
  if (state === "live" && Date.now() - heard > SILENT_MS) lost("it says nothing");
  tick();
}, 1000);

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) {
    hiding = setTimeout(() => {
      hiding = -1;
      abort.abort();
      clearTimeout(retry);
      state = "wait";
    }, HIDDEN_MS);
  } else if (hiding < 0) {
    hiding = 0;
    connect();
  }
});

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("narwhal-token", at("token").value.trim());
  at("token").value = "";
  connect();
});

const THEMES = ["system", "light", "dark"];
function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  at("theme").textContent = `Theme: ${name}`;
  localStorage.setItem("narwhal-theme", name);
}
const kept = localStorage.getItem("narwhal-theme");
theme(THEMES.includes(kept) ? kept : "system");
at("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme || "system";
  theme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});

connect();
