// The timeline of a step: rows of bars on a canvas, with zoom and pan. Data comes from the element
// #pk-timeline-data: {name, duration_us, omitted, parts: {name: colour}, names: [..], lanes: [{label, rows: [{s, d, c, n}]}], phases}.
// Only the bars in view are drawn, and of those that share a pixel only the first, so a frame costs rows x pixels.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("pk-timeline-data").textContent);
  const canvas = document.getElementById("pk-timeline"), said = document.getElementById("pk-timeline-said");
  const c = canvas.getContext("2d"), LEFT = 150, ROW = 15, GAP = 7, TOP = 24;
  const colours = Object.values(data.parts);
  let from = 0, to = data.duration_us, pending = false;
  window.pkFrames = 0;
  const rows = [];
  let y = TOP;
  for (const lane of data.lanes) {
    lane.y = y;
    for (const row of lane.rows) { rows.push({ ...row, y }); y += ROW; }
    y += GAP;
  }
  const height = y + 4;
  const width = () => canvas.clientWidth;
  const scale = () => (width() - LEFT) / (to - from);
  const x = (t) => LEFT + (t - from) * scale();
  const first = (row, t) => {               // the first bar that ends after t
    let low = 0, high = row.s.length;
    while (low < high) { const m = (low + high) >> 1; row.s[m] + row.d[m] <= t ? low = m + 1 : high = m; }
    return low;
  };
  const show = (us) => us >= 1e6 ? (us / 1e6).toFixed(3) + " s" : us >= 1e3 ? (us / 1e3).toFixed(3) + " ms" : us.toFixed(1) + " µs";

  function draw() {
    pending = false; window.pkFrames++;
    const ratio = window.devicePixelRatio || 1, ink = getComputedStyle(canvas).color;
    canvas.style.height = height + "px";
    canvas.width = width() * ratio; canvas.height = height * ratio;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.font = "12px sans-serif"; c.textBaseline = "middle";
    for (const p of data.phases) {
      c.globalAlpha = 0.25; c.fillStyle = data.parts[p.colour];
      c.fillRect(Math.max(LEFT, x(p.start_us)), 0, Math.min(width(), x(p.start_us + p.duration_us)) - Math.max(LEFT, x(p.start_us)), height);
      c.globalAlpha = 1; c.fillStyle = ink;
      const l = Math.max(LEFT, x(p.start_us)), r = Math.min(width(), x(p.start_us + p.duration_us));
      if (r - l > 70) c.fillText(p.name, l + 4, 10);
    }
    const pixel = 1 / scale();
    for (const row of rows) {
      for (let i = first(row, from); i < row.s.length && row.s[i] < to;) {
        const a = Math.max(LEFT, x(row.s[i])), b = Math.min(width(), x(row.s[i] + row.d[i]));
        c.fillStyle = colours[row.c[i]];
        c.fillRect(a, row.y, Math.max(1, b - a - 0.3), ROW - 2);
        if (b - a > 45) {
          c.fillStyle = "#111"; c.save(); c.beginPath(); c.rect(a, row.y, b - a - 2, ROW); c.clip();
          c.fillText(data.names[row.n[i]], a + 3, row.y + ROW / 2 - 1); c.restore();
        }
        const next = first(row, Math.max(row.s[i] + row.d[i], row.s[i] + pixel));
        i = next > i ? next : i + 1;
      }
    }
    c.fillStyle = ink;
    for (const lane of data.lanes) {
      c.fillText(lane.label.length > 23 ? lane.label.slice(0, 22) + "…" : lane.label, 4, lane.y + ROW / 2);
      c.globalAlpha = 0.25; c.fillRect(0, lane.y - GAP / 2, width(), 1); c.globalAlpha = 1;
    }
    said.textContent = `${data.name}: ${show(from)} to ${show(to)} of ${show(data.duration_us)}` + (data.omitted ? `; ${data.omitted} shorter events left out` : "");
  }
  const redraw = () => { if (!pending) { pending = true; requestAnimationFrame(draw); } };
  function move(a, b) {
    const span = Math.min(Math.max(b - a, 0.5), data.duration_us);
    from = Math.min(Math.max(a, 0), data.duration_us - span); to = from + span; redraw();
  }
  const zoom = (factor, at) => move(at - (at - from) * factor, at + (to - at) * factor);
  const time = (e) => from + Math.max(0, e.offsetX - LEFT) / scale();
  canvas.addEventListener("wheel", (e) => {
    e.preventDefault();
    if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) { const by = (e.deltaX || e.deltaY) / scale(); move(from + by, to + by); }
    else zoom(e.deltaY > 0 ? 1.25 : 0.8, time(e));
  }, { passive: false });
  let held = null;
  canvas.addEventListener("pointerdown", (e) => { held = e.clientX; canvas.setPointerCapture(e.pointerId); canvas.focus(); });
  canvas.addEventListener("pointerup", () => { held = null; });
  canvas.addEventListener("pointermove", (e) => {
    if (held !== null) { const by = (held - e.clientX) / scale(); held = e.clientX; move(from + by, to + by); return; }
    const row = rows.find((r) => e.offsetY >= r.y && e.offsetY < r.y + ROW), t = time(e);
    const i = row ? first(row, t) : -1;
    canvas.title = row && i < row.s.length && row.s[i] <= t ? `${data.names[row.n[i]]}\n${show(row.d[i])}` : "";
  });
  canvas.addEventListener("keydown", (e) => {
    const step = (to - from) / 5, middle = (from + to) / 2;
    const does = { ArrowLeft: () => move(from - step, to - step), ArrowRight: () => move(from + step, to + step),
      ArrowUp: () => zoom(0.7, middle), ArrowDown: () => zoom(1 / 0.7, middle), "+": () => zoom(0.7, middle),
      "-": () => zoom(1 / 0.7, middle), 0: () => move(0, data.duration_us), Home: () => move(0, to - from) }[e.key];
    if (does) { does(); e.preventDefault(); e.stopPropagation(); }
  });
  new ResizeObserver(redraw).observe(canvas);
  draw();
})();
