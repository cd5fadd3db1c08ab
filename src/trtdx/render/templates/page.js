"use strict";
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copy).textContent;
    try { await navigator.clipboard.writeText(text); button.textContent = "copied"; }
    catch { getSelection().selectAllChildren(document.getElementById(button.dataset.copy)); button.textContent = "press Ctrl-C"; }
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  });
}
const findings = [...document.querySelectorAll("article")];
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  const step = { j: 1, k: -1 }[event.key];
  if (!step || !findings.length) return;
  const at = findings.indexOf(document.activeElement.closest("article"));
  const next = findings[at < 0 ? 0 : Math.min(Math.max(at + step, 0), findings.length - 1)];
  next.focus(); history.replaceState(null, "", "#" + next.id);
});
