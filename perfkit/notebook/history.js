// The history of runs: a table to sort, filter, tick and edit, by mouse or by keyboard alone (the ARIA grid
// pattern: one tab stop, arrows between cells). Python holds the runs; this shows them and reports what was done.

const PAGE = 10;
const CHIPS = 3;
const COLUMNS = [
  { key: "ticked", label: "Tick" },
  { key: "name", label: "Name", edit: true },
  { key: "note", label: "Note", edit: true },
  { key: "stage", label: "Stage" },
  { key: "rate", label: "samples/s", sort: "rate_value", number: true },
  { key: "ratio", label: "× baseline", sort: "ratio_value", number: true },
  { key: "changes", label: "Changes" },
  { key: "created", label: "Date" },
  { key: "device", label: "Device" },
  { key: "disturbed", label: "Disturbed" },
];
const DAY = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });
const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

function element(tag, traits = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(traits)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter(child => child !== ""));
  return made;
}

function searchable(row) {
  const words = [row.name, row.note, row.stage, row.device, ...row.changes, row.since, row.created];
  if (row.disturbed) words.push("disturbed");
  return words.join(" ").toLowerCase();
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === "") return 1; // what has no value comes last, however it is sorted
  if (b === null || b === "") return -1;
  return typeof a === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
}

class Grid {
  constructor(model, el) {
    Object.assign(this, { model, filter: "", page: 0, by: "created", down: true });
    this.at = { id: null, column: 1 };
    this.editing = false;
    this.search = element("input", {
      type: "search", placeholder: "words of any column", oninput: () => this.refilter(),
      onkeydown: event => event.key === "ArrowDown" && this.focusRow(0),
    });
    this.count = element("span", { role: "status", class: "pk-runs-count" });
    const button = (text, act) => element("button", { type: "button", class: "jupyter-button", onclick: act }, text);
    this.clear = button("Untick all", () => this.tick([]));
    this.newer = button("‹ Previous", () => this.turn(-1));
    this.older = button("Next ›", () => this.turn(1));
    this.where = element("span");
    this.table = element("table", {
      role: "grid", "aria-label": "Runs", onkeydown: event => this.key(event), onfocusin: event => this.enter(event),
    });
    el.append(element("div", { class: "pk-runs", "data-lm-suppress-shortcuts": "true" },
      element("div", { class: "pk-runs-bar" },
        element("label", {}, "Filter ", this.search),
        this.count, this.clear, element("span", { class: "pk-runs-pages" }, this.newer, this.where, this.older)),
      this.table,
      element("p", { class: "pk-runs-keys" }, "Arrow keys move · Space ticks · Enter edits a name or "
        + "note, or sorts by a heading · Delete removes · Page Up and Page Down turn pages")));
    model.on("change:rows", () => this.draw());
    model.on("change:ticked", () => this.draw());
    this.draw();
  }

  // ---------------------------------------------------------------- which rows

  chosen() {
    const words = this.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = this.model.get("rows").filter(row => words.every(word => searchable(row).includes(word)));
    const column = COLUMNS.find(one => one.key === this.by), ticked = new Set(this.model.get("ticked"));
    const value = row => this.by === "ticked" ? Number(ticked.has(row.id))
      : this.by === "changes" ? row.changes.join(" ") : row[column.sort ?? column.key];
    return rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)], order = compare(x, y);
      return this.down && ![x, y].some(one => one === null || one === "") ? -order : order;
    });
  }

  refilter() {
    [this.filter, this.page] = [this.search.value, 0];
    this.draw();
  }

  sort(column) {
    const first = ["ticked", "rate", "ratio", "created", "disturbed"].includes(column.key);
    [this.down, this.by, this.page] = [this.by === column.key ? !this.down : first, column.key, 0];
    this.draw();
  }

  turn(by) {
    this.page += by;
    this.draw();
  }

  // ---------------------------------------------------------------- drawing

  draw() {
    if (this.editing) return; // the edit ends with a drawing
    const focused = this.table.contains(document.activeElement);
    const rows = this.chosen(), all = this.model.get("rows").length, ticked = this.model.get("ticked");
    const pages = Math.max(1, Math.ceil(rows.length / PAGE));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    this.shown = rows.slice(PAGE * this.page, PAGE * (this.page + 1));
    this.count.textContent = `${rows.length === all ? all : `${rows.length} of ${all}`} runs, ${ticked.length} ticked`;
    this.where.textContent = ` ${this.page + 1} / ${pages} `;
    [this.newer.disabled, this.older.disabled] = [this.page === 0, this.page === pages - 1];
    this.clear.disabled = ticked.length === 0;
    const body = this.shown.map(row => this.row(row, ticked.includes(row.id)));
    const none = element("tr", {}, element("td", { colspan: COLUMNS.length },
      all ? "No run has all these words: change the filter." : "No runs yet: press Run."));
    this.table.replaceChildren(element("thead", {}, this.head()), element("tbody", {}, ...(body.length ? body : [none])));
    if (this.at.id !== null && !this.shown.some(row => row.id === this.at.id)) this.at.id = this.shown[0]?.id ?? null;
    const target = this.target();
    if (target) target.tabIndex = 0;
    if (focused) target?.focus();
  }

  head() {
    return element("tr", {}, ...COLUMNS.map(column => element("th",
      { scope: "col", class: `pk-col-${column.key}`,
        "aria-sort": this.by === column.key ? (this.down ? "descending" : "ascending") : "none" },
      element("button", { type: "button", tabindex: -1, title: `Sort by ${column.label.toLowerCase()}`,
        "aria-label": column.label, onclick: () => this.sort(column) },
        column.key === "ticked" ? "✓" : column.head ?? column.label,
        element("span", { "aria-hidden": "true" }, this.by !== column.key ? "" : this.down ? " ▼" : " ▲")))));
  }

  row(row, ticked) {
    const cells = COLUMNS.map(column => element("td", { class: `pk-col-${column.key}`, tabindex: -1 },
      ...this.cell(row, column, ticked)));
    COLUMNS.forEach((column, at) => {
      if (!column.edit) return;
      cells[at].title = row[column.key] || `Enter or a double click edits the ${column.key}`;
      cells[at].addEventListener("dblclick", () => this.edit(row, column));
    });
    cells[6].title = row.changes.join(", ");
    return element("tr", { "data-id": row.id, "aria-selected": String(ticked) }, ...cells);
  }

  cell(row, column, ticked) {
    const text = row[column.key];
    if (column.key === "ticked") {
      const box = element("input", { type: "checkbox", tabindex: -1, "aria-label": `Compare ${row.name}`,
        onchange: () => this.toggle(row) });
      box.checked = ticked;
      return [box];
    }
    if (column.key === "changes") {
      const chips = row.changes.slice(0, CHIPS).map(change => element("span", { class: "pk-runs-chip" }, change));
      if (row.changes.length > CHIPS) chips.push(`+ ${row.changes.length - CHIPS} more`);
      const since = row.since ? `since ${row.since}` : "from torch's defaults";
      return [...(chips.length ? chips : [row.since ? "same switches " : "none "]), element("small", {}, since)];
    }
    if (column.key === "created") {
      const date = new Date(text);
      return isNaN(date) ? [text] : [TIME.format(date), element("small", {}, DAY.format(date))];
    }
    const parts = column.number ? text.match(/^([^(]*)(.*)$/) : null; // the interval on a line of its own
    return parts ? [parts[1], element("small", {}, parts[2])] : [element("span", { class: "pk-clamp" }, text)];
  }

  // ---------------------------------------------------------------- what is done

  toggle(row) {
    const ticked = this.model.get("ticked");
    this.tick(ticked.includes(row.id) ? ticked.filter(id => id !== row.id) : [...ticked, row.id]);
  }

  tick(ids) {
    this.model.set("ticked", ids);
    this.model.save_changes();
  }

  edit(row, column) {
    const cell = this.element(row.id, COLUMNS.indexOf(column)), input = element("input",
      { type: "text", maxlength: 300, "aria-label": `${column.label} of ${row.name}` });
    const end = kept => {
      if (!this.editing) return;
      this.editing = false;
      if (kept && input.value !== row[column.key]) {
        row[column.key] = input.value;
        this.model.send({ do: column.key, id: row.id, value: input.value });
      }
      this.draw();
    };
    this.editing = true;
    input.value = row[column.key];
    input.addEventListener("blur", () => end(true));
    input.addEventListener("keydown", event => {
      event.stopPropagation();
      if (event.key === "Enter" || event.key === "Escape") {
        end(event.key === "Enter");
        this.go(row.id, COLUMNS.indexOf(column));
      }
    });
    cell.replaceChildren(input);
    input.focus();
    input.select();
  }

  // ---------------------------------------------------------------- keyboard

  element(id, column) {
    const row = id === null ? this.table.tHead.rows[0] : [...this.table.tBodies[0].rows].find(one => one.dataset.id === id);
    return row?.cells[column];
  }

  target() {
    const cell = this.element(this.at.id, this.at.column);
    return cell?.querySelector("button, input") ?? cell;
  }

  enter(event) {
    const cell = event.target.closest("td, th");
    if (!cell || this.editing) return;
    for (const other of this.table.querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
    this.at = { id: cell.parentElement.dataset.id ?? null, column: cell.cellIndex };
    const target = this.target();
    if (target) target.tabIndex = 0;
    if (target && event.target === cell && target !== cell) target.focus();
  }

  go(id, column) {
    this.at = { id, column: Math.min(Math.max(0, column), COLUMNS.length - 1) };
    this.target()?.focus();
  }

  step(by) { // past the columns that a narrow page leaves out
    let column = this.at.column + by;
    while (this.element(this.at.id, column)?.offsetParent === null) column += by;
    this.go(this.at.id, column);
  }

  focusRow(at) {
    if (this.shown.length) this.go(this.shown[Math.min(Math.max(0, at), this.shown.length - 1)].id, this.at.column);
  }

  key(event) {
    if (this.editing || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.shown.findIndex(row => row.id === this.at.id), row = this.shown[at], column = COLUMNS[this.at.column];
    const acts = {
      ArrowUp: () => at > 0 ? this.focusRow(at - 1) : this.go(null, this.at.column),
      ArrowDown: () => this.focusRow(at + 1),
      ArrowLeft: () => this.step(-1),
      ArrowRight: () => this.step(1),
      Home: () => this.go(this.at.id, 0),
      End: () => this.go(this.at.id, COLUMNS.length - 1),
      PageUp: () => this.turn(-1),
      PageDown: () => this.turn(1),
    };
    if (row) {
      Object.assign(acts, {
        " ": () => this.toggle(row),
        Delete: () => this.model.send({ do: "delete", id: row.id }),
      });
      if (column.edit) acts.Enter = acts.F2 = () => this.edit(row, column);
    }
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }
}

export default { render: ({ model, el }) => { new Grid(model, el); } };
