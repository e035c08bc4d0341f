"use strict";
// A link opens the folded part that its target is in.
function reveal() {
  const target = document.getElementById(location.hash.slice(1));
  const folded = target && target.closest("details");
  if (folded && !folded.open) { folded.open = true; target.scrollIntoView(); }
}
addEventListener("hashchange", reveal);
reveal();
// A button hides calls that are neither named by a failure nor synchronise nor are outputs.
const table = document.querySelector(".timeline");
for (const row of table.querySelectorAll("tr.change")) {
  if (!row.querySelector(".marks a")) row.classList.add("plain");
}
if (table.querySelector(".plain")) {
  const button = document.createElement("button");
  button.type = "button";
  const label = () => {
    const filtered = table.classList.contains("filtered");
    button.textContent = filtered ? "Show all calls" : "Show only syncs, outputs and calls of failures";
    button.setAttribute("aria-pressed", filtered);
  };
  button.addEventListener("click", () => { table.classList.toggle("filtered"); label(); });
  label();
  table.before(button);
}
