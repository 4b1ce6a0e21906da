// The arrows that unfold a part of the left sidebar have no text: screen readers get the title of the part.
document.querySelectorAll(".bd-sidebar-primary details > summary").forEach((arrow) => {
  const link = arrow.parentElement.parentElement.querySelector("a");
  arrow.setAttribute("aria-label", `Pages of ${link ? link.textContent.trim() : "this part"}`);
});

// The link over a picture of the gallery hides its own text behind the title below.
document.querySelectorAll(".sphx-glr-thumbcontainer a.reference").forEach((link) => {
  link.setAttribute("aria-label", link.textContent.trim());
});
