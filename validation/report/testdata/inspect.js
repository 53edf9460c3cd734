// Looks at the report in each frame, and writes down what is wrong with it.
addEventListener("load", () => {
  const luminance = (c) => {
    const f = (v) => (v <= 10 ? v / 3294 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * f(c[0]) + 0.7152 * f(c[1]) + 0.0722 * f(c[2]);
  };
  const colour = (s) => {
    const c = s.match(/[\d.]+/g).map(Number);
    return c.length > 3 && c[3] === 0 ? null : c;
  };
  const results = [...document.querySelectorAll("iframe")].map((frame) => {
    const view = frame.contentWindow, page = frame.contentDocument, complaints = [];
    const style = (e) => view.getComputedStyle(e);
    const ground = (e) => (e ? colour(style(e).backgroundColor) || ground(e.parentElement) : [255, 255, 255]);
    if (page.documentElement.scrollWidth > view.innerWidth)
      complaints.push(`the page scrolls sideways: ${page.documentElement.scrollWidth} of ${view.innerWidth}`);

    const figures = [...page.querySelectorAll("figure")];
    for (const figure of figures) {
      const shown = [...figure.querySelectorAll(":scope > svg")].filter((s) => style(s).display !== "none");
      if (shown.length !== 1) complaints.push(`${figure.id}: ${shown.length} pictures are shown`);
      for (const svg of shown) {
        const box = svg.getBoundingClientRect();
        const drawn = [...svg.querySelectorAll("line, rect, circle, path")].filter((e) => {
          const b = e.getBBox();
          return b.width + b.height > 0;
        });
        if (drawn.length < 4 || box.width < 200 || box.height < 60) complaints.push(`${figure.id}: nothing is drawn`);
        const texts = [...svg.querySelectorAll("text")].map((e) => ({ name: e.textContent, b: e.getBoundingClientRect() }));
        texts.forEach(({ name, b }, i) => {
          if (b.height < 9) complaints.push(`${figure.id}: ${name}: too small to read`);
          if (b.left < box.left - 3 || b.right > box.right + 3 || b.top < box.top - 3 || b.bottom > box.bottom + 3)
            complaints.push(`${figure.id}: ${name}: sticks out of the picture`);
          for (const other of texts.slice(i + 1)) {
            const o = other.b;
            if (b.left < o.right - 1 && o.left < b.right - 1 && b.top < o.bottom - 4 && o.top < b.bottom - 4)
              complaints.push(`${figure.id}: ${name} and ${other.name} overlap`);
          }
        });
      }
    }

    for (const e of page.querySelectorAll("body *")) {
      const text = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
      if (!text || ["SCRIPT", "STYLE"].includes(e.tagName) || e.tagName === "title") continue;
      const ink = colour(e.tagName === "text" ? style(e).fill : style(e).color);
      const [a, b] = [luminance(ink), luminance(ground(e))].sort((x, y) => y - x);
      const contrast = (a + 0.05) / (b + 0.05);
      if (contrast < 4.5) complaints.push(`${e.textContent.slice(0, 30)}: contrast ${contrast.toFixed(1)}`);
    }
    return { width: view.innerWidth, dark: luminance(ground(page.body)) < 0.2, figures: figures.map((f) => f.id), complaints };
  });
  document.getElementById("result").textContent = JSON.stringify(results);
});
