// The arrows that unfold a part of the left sidebar have no text: screen readers get the title of the part.
document.querySelectorAll(".bd-sidebar-primary details > summary").forEach((arrow) => {
  const link = arrow.parentElement.parentElement.querySelector("a");
  arrow.setAttribute("aria-label", `Pages of ${link ? link.textContent.trim() : "this part"}`);
});
