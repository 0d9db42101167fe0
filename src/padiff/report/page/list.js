// A long list of which only what can be seen is in the document.

class LongList {
  constructor(box, height, draw) {
    this.box = box;
    this.height = height;
    this.draw = draw;
    this.lines = [];
    this.room = make("div");
    this.room.style.position = "relative";
    box.append(this.room);
    this.waiting = false;
    box.addEventListener("scroll", () => this.later(), { passive: true });
    new ResizeObserver(() => this.later()).observe(box);
  }

  show(lines) {
    this.lines = lines;
    this.room.style.height = `${lines.length * this.height}px`;
    this.now();
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.now(); });
  }

  now() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / this.height) - 8);
    const stop = Math.min(this.lines.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / this.height) + 8);
    const drawn = [];
    for (let i = first; i < stop; i++) {
      const element = this.draw(this.lines[i], i);
      element.style.top = `${i * this.height}px`;
      drawn.push(element);
    }
    this.room.replaceChildren(...drawn);
  }

  centre(i) {
    this.box.scrollTop = Math.max(0, (i + 0.5) * this.height - this.box.clientHeight / 2);
    this.now();
  }

  reveal(i) {
    const top = i * this.height;
    const { scrollTop, clientHeight } = this.box;
    if (top < scrollTop) this.box.scrollTop = Math.max(0, top - this.height);
    else if (top + this.height > scrollTop + clientHeight) this.box.scrollTop = top - clientHeight + 2 * this.height;
    this.now();
  }
}
