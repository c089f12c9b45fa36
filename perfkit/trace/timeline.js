// The timeline of a step: rows of bars on a canvas. Data comes from the element #pk-timeline-data: {name, duration_us,
// omitted, parts: {name: colour}, lanes: [{label, kind, bars}], phases}; a bar is [name, start, duration, part, depth, place].
// Only the bars in view are drawn, and of those that share a pixel only the first, so a frame costs rows x pixels.
(() => {
  "use strict";
  const $ = (name) => document.getElementById("pk-timeline" + name);
  const data = JSON.parse($("-data").textContent), canvas = $(""), c = canvas.getContext("2d");
  const LEFT = 150, ROW = 15, GAP = 7, TOP = 24, parts = Object.keys(data.parts), colours = Object.values(data.parts);
  // Black or white on a colour, whichever is read better (relative luminance, WCAG 2).
  const light = (hex) => [1, 3, 5].map((at) => (parseInt(hex.slice(at, at + 2), 16) / 255) ** 2.2)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const inks = colours.map((hex) => light(hex) > 0.18 ? "#111" : "#fff");
  let from = 0, to = data.duration_us, pending = false, rows = [], height = 0, chosen = null, span = null, theme = {};
  let wanted = "", hits = [], hit = -1, gaps = null, gap = -1, later = 0;
  window.pkFrames = 0;
  for (const lane of data.lanes) {          // a row for each level of nesting: starts, durations, colours, names, places
    lane.rows = [{ s: [], d: [], c: [], n: [], p: [] }];
    for (const [name, start, duration, part, depth, place] of lane.bars) {
      while (lane.rows.length <= depth) lane.rows.push({ s: [], d: [], c: [], n: [], p: [] });
      const row = lane.rows[depth];
      row.s.push(start); row.d.push(duration); row.c.push(parts.indexOf(part)); row.n.push(name); row.p.push(place);
    }
  }
  const end = (row, i) => row.s[i] + row.d[i];
  let wide = 0;                             // read once a frame: asking the page for it thousands of times costs more than drawing
  const scale = () => (wide - LEFT) / (to - from);
  const first = (row, t) => {               // the first bar that ends after t
    let low = 0, high = row.s.length;
    while (low < high) { const m = (low + high) >> 1; end(row, m) <= t ? low = m + 1 : high = m; }
    return low;
  };
  const show = (us) => us >= 1e6 ? (us / 1e6).toFixed(3) + " s" : us >= 1e3 ? (us / 1e3).toFixed(3) + " ms" : us.toFixed(1) + " µs";
  const matches = (row, i) => row.n[i].toLowerCase().includes(wanted) || row.p[i].toLowerCase().includes(wanted);

  function arrange() {                      // rows of folded lanes: only the outermost
    rows = []; height = TOP;
    for (const lane of data.lanes) {
      lane.y = height;
      for (const row of lane.folded ? lane.rows.slice(0, 1) : lane.rows) { row.y = height; row.lane = lane; rows.push(row); height += ROW; }
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
    const ratio = window.devicePixelRatio || 1, w = wide, per = scale(), pixel = 1 / per, x = (t) => LEFT + (t - from) * per;
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(w * ratio); canvas.height = Math.round(height * ratio);
    }
    c.setTransform(ratio, 0, 0, ratio, 0, 0); c.clearRect(0, 0, w, height);
    c.font = "12px system-ui, sans-serif"; c.textBaseline = "middle";
    for (const [name, start, duration, part] of data.phases) {
      const l = Math.max(LEFT, x(start)), r = Math.min(w, x(start + duration));
      if (r <= l) continue;
      c.globalAlpha = 0.25; c.fillStyle = data.parts[part]; c.fillRect(l, 0, r - l, height);
      c.globalAlpha = 1; c.fillStyle = theme.ink;
      if (r - l > 70) c.fillText(name, l + 4, 10);
    }
    let run = null;                         // bars without a gap that is seen, of one look: one rectangle, which is what costs
    const flush = () => { if (run) { c.globalAlpha = run.alpha; c.fillStyle = run.colour; c.fillRect(run.a, run.y, run.b - run.a, ROW - 2); run = null; } };
    for (const row of rows) {
      for (let i = first(row, from); i < row.s.length && row.s[i] < to;) {
        const a = Math.max(LEFT, x(row.s[i])), b = Math.min(w, x(end(row, i))), right = a + Math.max(1, b - a - 0.3);
        const alpha = wanted && !matches(row, i) ? 0.2 : 1, colour = colours[row.c[i]];
        if (run && run.y === row.y && run.colour === colour && run.alpha === alpha && b - a < 1 && a <= run.b + 0.5) run.b = right;
        else { flush(); run = { a, b: right, y: row.y, alpha, colour }; }
        if (b - a > 45) {
          flush();
          c.fillStyle = inks[row.c[i]]; c.save(); c.beginPath(); c.rect(a, row.y, b - a - 2, ROW); c.clip();
          c.fillText(row.n[i], a + 3, row.y + ROW / 2 - 1); c.restore();
        }
        const next = first(row, Math.max(end(row, i), row.s[i] + pixel));
        i = next > i ? next : i + 1;
      }
    }
    flush();
    c.globalAlpha = 1; c.fillStyle = theme.ink;
    for (const lane of data.lanes) {
      const text = (lane.rows.length > 1 ? (lane.folded ? "▸ " : "▾ ") : "") + lane.label;
      c.fillText(text.length > 23 ? text.slice(0, 22) + "…" : text, 4, lane.y + ROW / 2);
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
    const own = new Array(parts.length).fill(0), count = new Array(parts.length).fill(0);
    for (const lane of data.lanes) lane.rows.forEach((row, level) => {
      const above = lane.rows[level - 1];
      for (let i = first(row, a); i < row.s.length && row.s[i] < b; i++) {
        const time = Math.min(b, end(row, i)) - Math.max(a, row.s[i]);
        own[row.c[i]] += time; count[row.c[i]]++;
        const parent = above ? first(above, row.s[i]) : -1;
        if (above && parent < above.s.length && above.s[parent] <= row.s[i]) own[above.c[parent]] -= time;
      }
    });
    $("-said").textContent = `${data.name}: ${show(from)} to ${show(to)} of ${show(data.duration_us)}` + (data.omitted ? `; ${data.omitted} shorter events left out` : "");
    const order = parts.map((_, at) => at).filter((at) => count[at]).sort((p, q) => own[q] - own[p]);
    $("-sum").replaceChildren(...order.map((at) => {
      const item = document.createElement("li"), name = document.createElement("b");
      name.textContent = parts[at];
      item.append(name, ` ${show(Math.max(0, own[at]))} (${(100 * own[at] / (b - a)).toFixed(0)}%, ${count[at].toLocaleString("en")}×)`);
      return item;
    }));
    $("-span").textContent = span ? `Selected ${show(b - a)}:` : `In view, ${show(b - a)}:`;
  }
  function move(a, b) {
    const length = Math.min(Math.max(b - a, 0.5), data.duration_us);
    from = Math.min(Math.max(a, 0), data.duration_us - length); to = from + length; redraw();
  }
  const zoom = (factor, at) => move(at - (at - from) * factor, at + (to - at) * factor);
  const tell = (text) => { $("-event").textContent = text; };

  function choose(row, i) {                 // an event: outlined, described, and its line of code offered
    chosen = row ? { row, i } : null;
    const place = row && row.p[i];
    tell(row ? `${row.n[i]} · ${show(row.d[i])} from ${show(row.s[i])} · ${row.lane.label}` + (place ? ` · ${place}` : "") : "");
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
    if (wanted) for (const lane of data.lanes) for (const row of lane.rows) { row.lane = lane; for (let i = 0; i < row.s.length; i++) if (matches(row, i)) hits.push([row, i]); }
    hits.sort(([p, i], [q, j]) => p.s[i] - q.s[j]);
    const until = new Map(); let total = 0; // of each lane: what runs inside another hit counts once
    for (const [row, i] of hits) {
      const before = Math.max(row.s[i], until.get(row.lane) || 0);
      total += Math.max(0, end(row, i) - before); until.set(row.lane, Math.max(before, end(row, i)));
    }
    $("-hits").textContent = wanted ? (hits.length ? `${hits.length.toLocaleString("en")} events, ${show(total)} in all` : "nothing is called that") : "";
    redraw();
  }
  const step = (by) => { if (hits.length) { hit = (hit + by + hits.length) % hits.length; goTo(...hits[hit]); } };
  function longestGap() {                   // when no stream of the device works; without one, the busiest thread
    if (!gaps) {
      const device = data.lanes.filter((lane) => lane.kind === "stream" || lane.kind === "copies");
      const size = (lane) => lane.rows[0] ? lane.rows[0].s.length : 0;
      const lanes = device.length ? device : [...data.lanes].sort((p, q) => size(q) - size(p)).slice(0, 1);
      const name = device.length ? "the device does nothing" : `nothing in ${lanes[0]?.label}`;
      const busy = lanes.flatMap((lane) => (lane.rows[0]?.s || []).map((s, i) => [s, end(lane.rows[0], i)])).sort((p, q) => p[0] - q[0]);
      gaps = []; let until = 0;
      for (const [a, b] of [...busy, [data.duration_us, data.duration_us]]) { if (a > until) gaps.push([until, a, name]); until = Math.max(until, b); }
      gaps.sort((p, q) => (q[1] - q[0]) - (p[1] - p[0]));
    }
    if (!gaps.length) return tell("there is no gap");
    gap = (gap + 1) % Math.min(gaps.length, 20);
    const [a, b, name] = gaps[gap]; span = [a, b];
    move(a - (b - a), b + (b - a)); choose(null);
    tell(`Gap ${gap + 1}, the ${gap ? "next " : ""}longest: ${show(b - a)} in which ${name}`);
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
  $("-all").addEventListener("click", () => { span = null; choose(null); move(0, data.duration_us); });
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
    else if (!moved) { span = null; choose(...(under(e) || [null])); }
  });
  canvas.addEventListener("pointermove", (e) => {
    if (held === null) { const on = under(e); canvas.title = on ? `${on[0].n[on[1]]}\n${show(on[0].d[on[1]])}` : ""; return; }
    if (Math.abs(e.clientX - held) > 2) moved = true;
    if (e.shiftKey && span) { span[1] = time(e); redraw(); return; }
    const by = (held - e.clientX) / scale(); if (moved) { held = e.clientX; move(from + by, to + by); }
  });
  canvas.addEventListener("keydown", (e) => {
    const far = (to - from) / 5, middle = (from + to) / 2;
    const select = (by) => { span = span || [middle, middle]; span[1] = Math.min(Math.max(span[1] + by, 0), data.duration_us); redraw(); };
    const does = { ArrowLeft: () => e.shiftKey ? select(-far / 4) : move(from - far, to - far), ArrowRight: () => e.shiftKey ? select(far / 4) : move(from + far, to + far),
      ArrowUp: () => zoom(0.7, middle), ArrowDown: () => zoom(1 / 0.7, middle), "+": () => zoom(0.7, middle),
      "-": () => zoom(1 / 0.7, middle), 0: () => move(0, data.duration_us), Home: () => move(0, to - from), g: longestGap,
      "/": () => find.focus(), n: () => step(1), N: () => step(-1), Escape: () => { span = null; choose(null); } }[e.key];
    if (does) { does(); e.preventDefault(); e.stopPropagation(); }
  });
  new ResizeObserver(redraw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readTheme);
  arrange(); readTheme(); draw(); summarise();
})();
