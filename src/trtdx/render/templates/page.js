"use strict";
const showCopyButtons = () => { for (const button of document.querySelectorAll("button[data-copy]")) button.hidden = false; };
showCopyButtons();
document.addEventListener("click", async ({ target: button }) => {
  if (!button.dataset || !button.dataset.copy) return;
  const text = document.getElementById(button.dataset.copy).textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "copied"; }
  catch { getSelection().selectAllChildren(document.getElementById(button.dataset.copy)); button.textContent = "press Ctrl-C"; }
  setTimeout(() => { button.textContent = "copy"; }, 2000);
});
// What an address points at is unfolded, also when the address was there before.
const unfold = () => { const target = document.getElementById(location.hash.slice(1)); if (target && target.tagName === "DETAILS") { target.open = true; target.scrollIntoView(); } };
addEventListener("hashchange", unfold);
document.addEventListener("click", ({ target }) => { if (target.closest && target.closest("a[href^='#']")) setTimeout(unfold); });
unfold();
const findings = [...document.querySelectorAll("article")];
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  const home = document.querySelector("header nav a[href='/']");
  if (event.key === "u" && home) home.click();
  const step = { j: 1, k: -1 }[event.key];
  if (!step || !findings.length) return;
  const at = findings.indexOf(document.activeElement.closest("article"));
  const next = findings[at < 0 ? 0 : Math.min(Math.max(at + step, 0), findings.length - 1)];
  next.focus(); history.replaceState(null, "", "#" + next.id);
});

// A form whose answer is a part of the page: the server computes it anew while a slider moves, and the address says the state.
const form = document.querySelector("form[data-part]");
if (form) {
  const part = document.getElementById(form.dataset.part);
  let newest = 0, timer = 0;
  const refresh = async () => {
    const query = new URLSearchParams(new FormData(form));
    const number = ++newest;
    part.classList.add("waiting");
    const response = await fetch("?" + query + "&part=" + form.dataset.part);
    const text = await response.text();
    if (number !== newest) return;
    part.classList.remove("waiting");
    if (response.ok) { part.innerHTML = text; history.replaceState(null, "", "?" + query); showCopyButtons(); }
    else part.textContent = text;
  };
  for (const slider of form.querySelectorAll("input[type=range]")) {
    const number = slider.nextElementSibling, values = slider.dataset.values.split(" ").map(Number);
    slider.hidden = false;
    slider.addEventListener("input", () => { number.value = values[slider.value]; });
    number.addEventListener("input", () => {
      const gaps = values.map((value) => Math.abs(value - number.value));
      slider.value = gaps.indexOf(Math.min(...gaps));
    });
  }
  form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(refresh, 60); });
  form.addEventListener("submit", (event) => { event.preventDefault(); refresh(); });
}
