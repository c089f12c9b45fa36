// The history of runs: a plain table that sorts by its headings and filters by words. Ticked runs are compared.
// The table is native HTML, so that keyboard and screen reader work as everywhere else on the page.

const COLUMNS = [
  ["name", "name"], ["rate", "samples/s"], ["ratio", "× baseline"], ["changes", "what changed"], ["date", "date"],
];

// A run without a value comes last, whether the largest or the smallest are first.
export function compare(x, y, down) {
  if (x === y) return 0;
  if (x === null) return 1;
  if (y === null) return -1;
  const rising = x < y ? -1 : 1;
  return down ? -rising : rising;
}

export function render({ model, el }) {
  let by = "date", down = true;
  const rows = new Map(); // id → its row, kept as long as the run is there

  const filter = document.createElement("input");
  Object.assign(filter, { type: "search", placeholder: "Filter", ariaLabel: "Filter the runs by words" });
  const count = document.createElement("span");
  count.setAttribute("role", "status");
  const table = document.createElement("table");
  const head = table.createTHead().insertRow(), body = table.createTBody();
  head.append(document.createElement("th"));
  head.firstChild.textContent = "compare";
  const scroll = document.createElement("div");
  Object.assign(scroll, { className: "pk-scroll", tabIndex: 0, role: "group", ariaLabel: "Runs" });
  scroll.append(table);
  el.append(filter, count, scroll);

  const headings = COLUMNS.map(([key, label]) => {
    const cell = document.createElement("th"), button = document.createElement("button");
    cell.scope = "col";
    button.textContent = label;
    button.onclick = () => { [by, down] = [key, by === key ? !down : key !== "name"]; show(); };
    cell.append(button);
    head.append(cell);
    return cell;
  });

  function make(run) {
    const row = document.createElement("tr"), tick = document.createElement("input");
    tick.type = "checkbox";
    tick.onchange = () => {
      const others = model.get("ticked").filter((id) => id !== run.id);
      model.set("ticked", tick.checked ? [...others, run.id] : others);
      model.save_changes();
    };
    row.insertCell().append(tick);
    for (const [key] of COLUMNS) row.insertCell().className = `pk-${key}`;
    rows.set(run.id, row);
    return row;
  }

  function fill(run) {
    const row = rows.get(run.id) ?? make(run);
    const text = COLUMNS.map(([key]) => String(run[key] ?? ""));
    text.forEach((value, at) => {
      const cell = row.cells[at + 1];
      if (cell.textContent !== value) cell.textContent = value;
    });
    row.cells[0].firstChild.ariaLabel = `compare ${run.name}, ${run.date}`;
    row.words = text.join(" ").toLowerCase();
    return row;
  }

  function show() {
    const runs = model.get("rows"), ids = new Set(runs.map((run) => run.id));
    for (const [id, row] of rows) if (!ids.has(id)) { row.remove(); rows.delete(id); }
    const value = (run) => (`${by}_value` in run ? run[`${by}_value`] : run[by]);
    const order = [...runs].sort((a, b) => compare(value(a), value(b), down));
    const wanted = order.map(fill);
    wanted.forEach((row, at) => { if (body.children[at] !== row) body.insertBefore(row, body.children[at] ?? null); });
    headings.forEach((cell, at) => {
      cell.ariaSort = COLUMNS[at][0] === by ? (down ? "descending" : "ascending") : "none";
    });
    sift();
    tick();
  }

  function sift() {
    const words = filter.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const row of rows.values()) {
      row.hidden = !words.every((word) => row.words.includes(word));
      shown += !row.hidden;
    }
    count.textContent = ` ${shown} of ${rows.size} runs`;
  }

  function tick() {
    const ticked = new Set(model.get("ticked"));
    for (const [id, row] of rows) row.cells[0].firstChild.checked = ticked.has(id);
  }

  filter.oninput = sift;
  el.addEventListener("keydown", (event) => event.stopPropagation()); // JupyterLab's keys stay its own
  model.on("change:rows", show);
  model.on("change:ticked", tick);
  show();
}

export default { render };
