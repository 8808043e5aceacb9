/* The colours somebody chose are kept in a cookie, so that a page comes in them at once. */
function presageTheme(button) {
  const order = { auto: "light", light: "dark", dark: "auto" };
  const next = order[button.dataset.themeChoice] || "auto";
  const age = next === "auto" ? 0 : 31536000;
  document.cookie = `presage_theme=${next}; path=/ui; max-age=${age}; samesite=lax`;
  button.dataset.themeChoice = next;
  button.textContent = `Colours: ${next}`;
  Quasar.Dark.set(next === "auto" ? "auto" : next === "dark");
}
