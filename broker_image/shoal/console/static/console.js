// Keeps the changing part of a page current by server-sent events, and shows the values of charts.
"use strict";

const live = document.getElementById("live");
const pulse = document.getElementById("pulse");
const pause = document.getElementById("pause");
const lost = document.getElementById("lost");

// Make `from` equal to `to` and keep the elements, so that focus, selection and scrolling stay.
function morph(from, to) {
  if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) {
    from.replaceWith(to);
    return;
  }
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  if (from.isEqualNode(to)) return;
  // What the user has typed or opened stays. A hidden input is the server's.
  if (from.type === "hidden") from.value = to.value;
  if (from.nodeName === "INPUT" || from.nodeName === "SELECT") return;
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && name !== "open") from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value && name !== "open") from.setAttribute(name, value);
  }
  morphChildren(from, to);
}

// Children with ids are matched by them, in any order; others by their place.
function morphChildren(from, to) {
  const named = new Map();
  for (const child of from.children) if (child.id) named.set(child.id, child);
  let at = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const same = wanted.id ? named.get(wanted.id) : undefined;
    if (same) {
      if (same === at) at = at.nextSibling;
      else from.insertBefore(same, at);
      morph(same, wanted);
    } else if (at && !at.id && !wanted.id) {
      const next = at.nextSibling;
      morph(at, wanted);
      at = next;
    } else {
      from.insertBefore(wanted, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function clock() {
  return new Date().toISOString().slice(11, 19) + " UTC";
}

function setPulse(state, text) {
  pulse.dataset.state = state;
  if (pulse.textContent !== text) pulse.textContent = text;
}

function follow() {
  let paused = false;
  let latest = null;
  const show = () => {
    const page = new DOMParser().parseFromString(latest, "text/html");
    morphChildren(live, page.body);
    latest = null;
  };
  let isStale = false;
  let pausedAt = "";
  // The console answers, but it may show an old state of a cluster that does not.
  const showPulse = () => {
    const words = paused ? "Paused at " + pausedAt : isStale ? "No answer" : "Updated " + clock();
    setPulse(isStale ? "bad" : "live", words);
  };
  const arrived = (html) => {
    lost.hidden = true;
    if (html !== null) {
      latest = html;
      isStale = html.includes('data-stale="');
    }
    showPulse();
    if (!paused && latest !== null) show();
  };
  const source = new EventSource(live.dataset.stream);
  source.addEventListener("state", (event) => arrived(event.data));
  source.addEventListener("same", () => arrived(null));
  source.addEventListener("problem", (event) => {
    lost.textContent = event.data;
    lost.hidden = false;
  });
  source.onerror = () => {
    setPulse("bad", "Not connected");
    lost.textContent =
      source.readyState === EventSource.CLOSED
        ? "The console does not answer. Reload the page once it runs again."
        : "The connection to the console is lost. The page shows its last state and connects again.";
    lost.hidden = false;
  };
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pausedAt = clock();
    pause.setAttribute("aria-pressed", String(paused));
    if (!paused && latest !== null) show();
    showPulse();
  });
}

// Show the values at the pointer below a chart.
function readout(event) {
  const figure = event.target.closest?.(".chart");
  for (const other of document.querySelectorAll(".chart .cursor")) {
    if (!figure || !figure.contains(other)) clear(other);
  }
  if (!figure) return;
  const svg = figure.querySelector("svg");
  const { x, t, lines } = JSON.parse(figure.dataset.readout);
  if (!x.length) return;
  const here = new DOMPoint(event.clientX, event.clientY).matrixTransform(
    svg.getScreenCTM().inverse(),
  ).x;
  let best = 0;
  for (let i = 1; i < x.length; i++) if (Math.abs(x[i] - here) < Math.abs(x[best] - here)) best = i;
  let cursor = svg.querySelector(".cursor");
  if (!cursor) {
    cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
    cursor.setAttribute("class", "cursor");
    cursor.setAttribute("y1", "0");
    cursor.setAttribute("y2", "120");
    svg.append(cursor);
  }
  cursor.setAttribute("x1", x[best]);
  cursor.setAttribute("x2", x[best]);
  const ago = t[best] < 90 ? `${t[best]} s ago` : `${Math.round(t[best] / 60)} min ago`;
  const text = figure.querySelector(".readout");
  text.hidden = false;
  text.textContent = `${ago}: ` + lines.map(([name, values]) => `${name} ${values[best]}`).join(", ");
}

function clear(cursor) {
  const text = cursor.closest(".chart").querySelector(".readout");
  text.hidden = true;
  cursor.remove();
}

if (live) {
  follow();
  document.addEventListener("pointermove", readout);
}
