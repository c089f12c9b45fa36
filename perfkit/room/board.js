"use strict";
// Asks for the rows every two seconds; the server answers "not modified" while nothing was shared.
const board = document.getElementById("board"), lost = document.getElementById("lost");
const token = new URLSearchParams(location.search).get("token");
let shown = "";
async function refresh() {
  try {
    const answer = await fetch("board", { headers: { Authorization: `Bearer ${token}` } });
    const text = await answer.text();
    if (answer.ok && text !== shown) { board.innerHTML = text; shown = text; }
    lost.hidden = answer.ok;
  } catch { lost.hidden = false; }
  setTimeout(refresh, 2000);
}
refresh();
