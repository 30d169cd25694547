// Shows the copy buttons and makes them copy.
"use strict";

const announcer = document.createElement("div");
announcer.className = "unseen";
announcer.setAttribute("role", "status");
document.body.append(announcer);

for (const button of document.querySelectorAll("button[data-copy]")) {
  const source = document.getElementById(button.dataset.copy);
  if (!source) continue;
  const label = button.firstChild;
  const words = label.textContent;
  let back = 0;
  button.hidden = false;
  button.addEventListener("click", async () => {
    let copied = true;
    try {
      await navigator.clipboard.writeText("value" in source ? source.value : source.textContent);
    } catch {
      copied = false;
    }
    announcer.textContent = copied ? "Copied" : "Could not copy. Select the text and copy it by hand.";
    label.textContent = copied ? "Copied" : "Could not copy";
    if (!copied && "select" in source) source.select();
    clearTimeout(back);
    back = setTimeout(() => {
      label.textContent = words;
      announcer.textContent = "";
    }, 4000);
  });
}
