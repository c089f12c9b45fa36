// The timeline of a recording: rows of bars on a canvas. Data comes from the element #pk-timeline-data, times in ns:
// {start, end, left_out, step, steps, lanes: [{label, kind, rows}], texts, parts, colours}. Steps are starts, durations and
// names. Each row is columns: starts, durations, texts, parts, places.
// Several bars share a pixel: it is as pale as the time is idle in it.
(() => {
  "use strict";
  const $ = (name) => document.getElementById("pk-timeline" + name);
  const data = JSON.parse($("-data").textContent), canvas = $(""), c = canvas.getContext("2d");
  const FONT = "12px system-ui, sans-serif", ROW = 15, GAP = 7, TOP = 22, { parts, colours, texts } = data;
  c.font = FONT;                            // the column of labels is as wide as the longest, which is squeezed where it is too long
  const LEFT = Math.min(210, Math.max(150, ...data.lanes.map((lane) => c.measureText("▾ " + lane.label).width + 12)));
  const [starts, durations, names] = data.steps, steps = { s: starts, d: durations };
  for (const lane of data.lanes) lane.rows = lane.rows.map(([s, d, n, c, p]) => ({ s, d, n, c, p, lane }));
  const end = (row, i) => row.s[i] + row.d[i];
  // Black or white on a colour, whichever is read better (relative luminance, WCAG 2).
  const light = (hex) => [1, 3, 5].map((at) => (parseInt(hex.slice(at, at + 2), 16) / 255) ** 2.2)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const inks = colours.map((hex) => light(hex) > 0.18 ? "#111" : "#fff");
  let home = [steps.s[data.step], end(steps, data.step)], [from, to] = home;   // home: the step that is looked at, or all
  let pending = false, rows = [], height = 0, chosen = null, span = null, theme = {};
  let wanted = "", good = [], hits = [], hit = -1, gaps = null, gap = -1, later = 0;
  let wide = 0;                             // read once a frame: asking the page for it thousands of times costs more than drawing
  window.pkFrames = 0;
  const scale = () => (wide - LEFT) / (to - from);
  const first = (row, t) => {               // the first bar that ends after t
    let low = 0, high = row.s.length;
    while (low < high) { const m = (low + high) >> 1; end(row, m) <= t ? low = m + 1 : high = m; }
    return low;
  };
  const show = (ns) => ns >= 1e9 ? (ns / 1e9).toFixed(3) + " s" : ns >= 1e6 ? (ns / 1e6).toFixed(3) + " ms" : (ns / 1e3).toFixed(1) + " µs";
  const many = (count) => count.toLocaleString("en");
  const name = (row, i) => texts[row.n[i]];
  const matches = (row, i) => good[row.n[i]] || good[row.p[i]];

  function arrange() {                      // rows of folded lanes: only the outermost
    rows = []; height = TOP;
    for (const lane of data.lanes) {
      lane.y = height;
      for (const row of lane.folded ? lane.rows.slice(0, 1) : lane.rows) { row.y = height; rows.push(row); height += ROW; }
      height += GAP;
    }
    height += 4; canvas.style.height = height + "px"; redraw();
  }
  function readTheme() {
    const style = getComputedStyle(canvas);
    theme = { ink: style.color, mark: style.getPropertyValue("--pk-mark").trim() || "#d55e00" };
    redraw();
  }
  function draw() {
    pending = false; window.pkFrames++;
    wide = canvas.clientWidth;
    const ratio = window.devicePixelRatio || 1, w = wide, per = scale(), x = (t) => LEFT + (t - from) * per;
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(w * ratio); canvas.height = Math.round(height * ratio);
    }
    c.setTransform(ratio, 0, 0, ratio, 0, 0); c.clearRect(0, 0, w, height);
    c.font = FONT; c.textBaseline = "middle";
    const visible = (row, draw) => {        // each bar of a row that is in view, with its edges
      for (let i = first(row, from); i < row.s.length && row.s[i] < to; i++) draw(i, Math.max(LEFT, x(row.s[i])), Math.min(w, x(end(row, i))));
    };
    const label = (text, a, b, y) => {
      c.save(); c.beginPath(); c.rect(a, y - ROW / 2, b - a - 2, ROW); c.clip(); c.fillText(text, a + 3, y); c.restore();
    };
    visible(steps, (i, a, b) => {
      c.fillStyle = theme.ink; c.globalAlpha = 0.3;
      if (b - a > 3) c.fillRect(a, 0, 1, height);
      c.globalAlpha = i === data.step ? 1 : 0.7;
      if (b - a > 50) label(names[i], a, b, 9);
    });
    for (const row of rows) {
      let pixel = 0, busy = 0, longest = -1, match = false;
      const paint = (i, a, b, alpha, match) => {
        c.globalAlpha = wanted && !match ? 0.15 : 0.25 + 0.75 * alpha;
        c.fillStyle = colours[row.c[i]]; c.fillRect(a, row.y, b - a, ROW - 2);
      };
      const flush = () => {
        if (longest >= 0) paint(longest, pixel, pixel + 1, Math.min(1, busy), match);
        busy = 0; longest = -1; match = false;
      };
      visible(row, (i, a, b) => {
        if (b - a < 1.5) {                  // it shares a pixel
          if (Math.floor(a) !== pixel) { flush(); pixel = Math.floor(a); }
          busy += b - a; match ||= matches(row, i);
          if (longest < 0 || row.d[i] > row.d[longest]) longest = i;
          return;
        }
        flush(); paint(i, a, b - 0.3, 1, matches(row, i));
        if (b - a < 45) return;
        c.globalAlpha = wanted && !matches(row, i) ? 0.3 : 1;
        c.fillStyle = inks[row.c[i]]; label(name(row, i), a, b, row.y + ROW / 2 - 1);
      });
      flush();
    }
    c.globalAlpha = 1; c.fillStyle = theme.ink;
    for (const lane of data.lanes) {
      c.fillText((lane.rows.length > 1 ? (lane.folded ? "▸ " : "▾ ") : "") + lane.label, 4, lane.y + ROW / 2, LEFT - 8);
      c.globalAlpha = 0.25; c.fillRect(0, lane.y - GAP / 2, w, 1); c.globalAlpha = 1;
    }
    c.strokeStyle = theme.mark; c.lineWidth = 2;
    if (chosen && rows.includes(chosen.row)) {
      const a = Math.max(LEFT, x(chosen.row.s[chosen.i])), b = Math.min(w, x(end(chosen.row, chosen.i)));
      if (b >= LEFT && a <= w) c.strokeRect(a, chosen.row.y - 1, Math.max(2, b - a), ROW);
    }
    if (span) {
      const a = Math.max(LEFT, x(Math.min(...span))), b = Math.min(w, x(Math.max(...span)));
      c.globalAlpha = 0.15; c.fillStyle = theme.mark; c.fillRect(a, TOP - 4, Math.max(1, b - a), height);
      c.globalAlpha = 1; c.strokeRect(a, TOP - 4, Math.max(1, b - a), height - TOP);
    }
    clearTimeout(later); later = setTimeout(summarise, 120);   // not in a frame: it goes over every event in view
  }
  const redraw = () => { if (!pending) { pending = true; requestAnimationFrame(draw); } };

  function summarise() {                    // what is in view, or in the selected span: time by kind, without what runs inside
    const [a, b] = span ? [Math.min(...span), Math.max(...span)] : [from, to];
    const own = parts.map(() => 0), count = parts.map(() => 0);
    for (const lane of data.lanes) lane.rows.forEach((row, level) => {
      const above = lane.rows[level - 1];
      for (let i = first(row, a); i < row.s.length && row.s[i] < b; i++) {
        const time = Math.min(b, end(row, i)) - Math.max(a, row.s[i]);
        own[row.c[i]] += time; count[row.c[i]]++;
        const parent = above ? first(above, row.s[i]) : -1;
        if (above && parent < above.s.length && above.s[parent] <= row.s[i]) own[above.c[parent]] -= time;
      }
    });
    $("-said").textContent = `${show(from)} to ${show(to)} of ${show(data.end)}` +
      (data.left_out ? `; ${many(data.left_out)} events are not here, as they are farther from ${names[data.step]}` : "");
    const order = parts.map((_, at) => at).filter((at) => count[at]).sort((p, q) => own[q] - own[p]);
    $("-sum").replaceChildren(...order.map((at) => {
      const item = document.createElement("li"), name = document.createElement("b");
      name.textContent = parts[at];
      item.append(name, ` ${show(Math.max(0, own[at]))} (${(100 * own[at] / (b - a)).toFixed(0)}%, ${many(count[at])}×)`);
      return item;
    }));
    $("-span").textContent = span ? `Selected ${show(b - a)}:` : `In view, ${show(b - a)}:`;
  }
  function move(a, b) {
    const length = Math.min(Math.max(b - a, 500), data.end - data.start);
    from = Math.min(Math.max(a, data.start), data.end - length); to = from + length; redraw();
  }
  const zoom = (factor, at) => move(at - (at - from) * factor, at + (to - at) * factor);
  function visit(a, b) { home = [a, b]; gaps = span = null; move(a, b); choose(null); }
  const open = (step) => visit(steps.s[step], end(steps, step));
  const nextStep = (by) => open(Math.min(Math.max(first(steps, (from + to) / 2) + by, 0), steps.s.length - 1));
  const tell = (text) => { $("-event").textContent = text; };

  function choose(row, i) {                 // an event: outlined, described, and its line of code offered
    chosen = row ? { row, i } : null;
    const place = row && texts[row.p[i]];
    tell(row ? `${name(row, i)} · ${show(row.d[i])} from ${show(row.s[i])} · ${row.lane.label}` + (place ? ` · ${place}` : "") : "");
    $("-line").hidden = !place; $("-line").textContent = place ? `All of ${place}` : ""; $("-line").value = place || "";
    redraw();
  }
  function goTo(row, i) {
    if (row.lane.folded && row !== row.lane.rows[0]) fold(row.lane);
    const length = Math.max(4 * row.d[i], (to - from) / 8), middle = row.s[i] + row.d[i] / 2;
    if (row.s[i] < from || end(row, i) > to || row.d[i] * scale() < 4) move(middle - length / 2, middle + length / 2);
    choose(row, i);
  }
  function search(text) {
    wanted = text.trim().toLowerCase(); hits = []; hit = -1;
    good = texts.map((text) => wanted && text.toLowerCase().includes(wanted));
    if (wanted) for (const lane of data.lanes) for (const row of lane.rows) row.s.forEach((_, i) => { if (matches(row, i)) hits.push([row, i]); });
    hits.sort(([p, i], [q, j]) => p.s[i] - q.s[j]);
    const until = new Map(); let total = 0; // of each lane: what runs inside another hit counts once
    for (const [row, i] of hits) {
      const before = Math.max(row.s[i], until.get(row.lane) || 0);
      total += Math.max(0, end(row, i) - before); until.set(row.lane, Math.max(before, end(row, i)));
    }
    $("-hits").textContent = wanted ? (hits.length ? `${many(hits.length)} events, ${show(total)} in all` : "nothing is called that") : "";
    redraw();
  }
  const step = (by) => { if (hits.length) { hit = (hit + by + hits.length) % hits.length; goTo(...hits[hit]); } };
  function longestGap() {                   // when no stream of the device works; without one, the busiest thread
    if (!gaps) {
      const device = data.lanes.filter((lane) => lane.kind === "stream" || lane.kind === "copies");
      const size = (lane) => lane.rows[0] ? lane.rows[0].s.length : 0;
      const lanes = device.length ? device : [...data.lanes].sort((p, q) => size(q) - size(p)).slice(0, 1);
      const words = device.length ? "the device does nothing" : `nothing in ${lanes[0]?.label}`;
      const busy = lanes.flatMap((lane) => (lane.rows[0]?.s || []).map((s, i) => [s, end(lane.rows[0], i)])).sort((p, q) => p[0] - q[0]);
      gaps = []; let [until, last] = home;
      for (const [a, b] of [...busy, [last, last]]) { if (Math.min(a, last) > until) gaps.push([until, Math.min(a, last), words]); until = Math.max(until, b); }
      gaps.sort((p, q) => (q[1] - q[0]) - (p[1] - p[0])); gap = -1;
    }
    if (!gaps.length) return tell("there is no gap");
    gap = (gap + 1) % Math.min(gaps.length, 20);
    const [a, b, words] = gaps[gap]; span = [a, b];
    move(a - (b - a), b + (b - a)); choose(null);
    tell(`Gap ${gap + 1}, the ${gap ? "next " : ""}longest: ${show(b - a)} in which ${words}`);
  }
  function fold(lane) {
    lane.folded = !lane.folded; lane.box.checked = !lane.folded; arrange();
  }
  for (const lane of data.lanes) {
    const label = document.createElement("label");
    lane.box = Object.assign(document.createElement("input"), { type: "checkbox", checked: true, disabled: lane.rows.length < 2 });
    lane.box.addEventListener("change", () => fold(lane));
    label.append(lane.box, " " + lane.label); $("-lanes").append(label);
  }
  const find = $("-find");
  find.addEventListener("input", () => search(find.value));
  find.addEventListener("keydown", (e) => { e.stopPropagation(); if (e.key === "Enter") step(e.shiftKey ? -1 : 1); if (e.key === "Escape") { find.value = ""; search(""); canvas.focus(); } });
  $("-next").addEventListener("click", () => step(1));
  $("-gap").addEventListener("click", longestGap);
  $("-all").addEventListener("click", () => visit(data.start, data.end));
  $("-line").addEventListener("click", () => { find.value = $("-line").value; search(find.value); step(1); });

  const time = (e) => from + Math.max(0, e.offsetX - LEFT) / scale();
  const under = (e) => {
    const row = rows.find((r) => e.offsetY >= r.y && e.offsetY < r.y + ROW), t = time(e), i = row && e.offsetX >= LEFT ? first(row, t) : -1;
    return row && i >= 0 && i < row.s.length && row.s[i] <= t ? [row, i] : null;
  };
  canvas.addEventListener("wheel", (e) => {
    e.preventDefault();
    if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) { const by = (e.deltaX || e.deltaY) / scale(); move(from + by, to + by); }
    else zoom(e.deltaY > 0 ? 1.25 : 0.8, time(e));
  }, { passive: false });
  let held = null, moved = false;
  canvas.addEventListener("pointerdown", (e) => {
    held = e.clientX; moved = false; canvas.setPointerCapture(e.pointerId); canvas.focus();
    if (e.shiftKey) span = [time(e), time(e)];
  });
  canvas.addEventListener("pointerup", (e) => {
    held = null;
    const lane = e.offsetX < LEFT && data.lanes.find((l) => e.offsetY >= l.y && e.offsetY < l.y + ROW);
    if (lane && !moved && lane.rows.length > 1) fold(lane);
    else if (!moved && e.offsetX >= LEFT && e.offsetY < TOP && first(steps, time(e)) < steps.s.length) open(first(steps, time(e)));
    else if (!moved) { span = null; choose(...(under(e) || [null])); }
  });
  canvas.addEventListener("pointermove", (e) => {
    if (held === null) { const on = under(e); canvas.title = on ? `${name(...on)}\n${show(on[0].d[on[1]])}` : ""; return; }
    if (Math.abs(e.clientX - held) > 2) moved = true;
    if (e.shiftKey && span) { span[1] = time(e); redraw(); return; }
    const by = (held - e.clientX) / scale(); if (moved) { held = e.clientX; move(from + by, to + by); }
  });
  canvas.addEventListener("keydown", (e) => {
    const far = (to - from) / 5, middle = (from + to) / 2;
    const select = (by) => { span = span || [middle, middle]; span[1] = Math.min(Math.max(span[1] + by, data.start), data.end); redraw(); };
    const does = { ArrowLeft: () => e.shiftKey ? select(-far / 4) : move(from - far, to - far), ArrowRight: () => e.shiftKey ? select(far / 4) : move(from + far, to + far),
      ArrowUp: () => zoom(0.7, middle), ArrowDown: () => zoom(1 / 0.7, middle), "+": () => zoom(0.7, middle),
      "-": () => zoom(1 / 0.7, middle), 0: () => visit(data.start, data.end), Home: () => move(data.start, data.start + to - from), g: longestGap, s: () => nextStep(1), S: () => nextStep(-1),
      "/": () => find.focus(), n: () => step(1), N: () => step(-1), Escape: () => { span = null; choose(null); } }[e.key];
    if (does) { does(); e.preventDefault(); e.stopPropagation(); }
  });
  new ResizeObserver(redraw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readTheme);
  arrange(); readTheme(); draw(); summarise();
})();
