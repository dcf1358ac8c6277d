(function () {
  "use strict";
  var root = document.documentElement, key = "largebatch-theme";
  function stored() {
    try { return localStorage.getItem(key); } catch (error) { return null; }
  }
  function dark() {
    var chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  if (stored() === "dark" || stored() === "light") { root.dataset.theme = stored(); }
  root.classList.add("js");
  addEventListener("DOMContentLoaded", function () {
    var button = document.getElementById("theme");
    function label() { button.textContent = dark() ? "Light" : "Dark"; }
    button.addEventListener("click", function () {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem(key, root.dataset.theme); } catch (error) { /* private window */ }
      label();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
    label();
  });
})();
