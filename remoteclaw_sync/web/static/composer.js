// Where people write: the text, pasted and dropped images, and the queue for when the agent is free.

import { imageAddress, store, stored, upload } from "./api.js";
import { $, button, element } from "./dom.js";

const QUEUE = "remoteclaw-sync-queue";
const TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const MOST_BYTES = 10 * 1024 * 1024;
const SMALLER = 1568;  // Pixels of the longer side: the vendors scale down anything larger.

// The file itself, or a smaller version of it if it is too large.
async function fitting(file) {
  if (file.size <= MOST_BYTES) return file;
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, SMALLER / Math.max(bitmap.width, bitmap.height));
  const canvas = element("canvas");
  canvas.width = Math.round(bitmap.width * scale);
  canvas.height = Math.round(bitmap.height * scale);
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/jpeg", 0.9); });
}

export class Composer {
  // `send(message)` gets { prompt, images }; `say(text)` shows an error.
  constructor(send, say) {
    this.send = send;
    this.say = say;
    this.images = [];
    this.uploading = 0;
    this.queue = this.restored();
    const prompt = $("prompt");
    $("form").addEventListener("submit", (event) => { event.preventDefault(); this.submit("send"); });
    $("queue").addEventListener("click", () => this.submit("queue"));
    $("attach").addEventListener("click", () => $("files").click());
    $("files").addEventListener("change", () => { this.take([...$("files").files]); $("files").value = ""; });
    prompt.addEventListener("input", () => this.grow());
    prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.submit(event.ctrlKey || event.metaKey ? "queue" : "send");
    });
    prompt.addEventListener("paste", (event) => {
      const files = [...event.clipboardData.files];
      if (files.length) { event.preventDefault(); this.take(files); }
    });
    // Handles only files; dragged text is dropped as everywhere else.
    const hasFiles = (event) => event.dataTransfer.types.includes("Files");
    document.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      document.body.classList.add("dropping");
    });
    document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
    document.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      document.body.classList.remove("dropping");
      this.take([...event.dataTransfer.files]);
    });
    this.showQueue();
  }

  submit(how) {
    const prompt = $("prompt").value.trim();
    if ((!prompt && !this.images.length) || this.uploading) return;
    const message = { prompt: prompt || "See the image.", images: this.images.map((image) => image.name) };
    this.clear();
    this.send(message, how);
  }

  clear() {
    $("prompt").value = "";
    this.images = [];
    this.showImages();
    this.grow();
  }

  // Puts a message that could not be sent back into the text field.
  giveBack(message) {
    const prompt = $("prompt");
    prompt.value = [message.prompt, prompt.value].filter(Boolean).join("\n\n");
    for (const name of message.images) this.show(name);
    this.grow();
  }

  grow() {
    const prompt = $("prompt");
    prompt.style.height = "auto";
    prompt.style.height = `${prompt.scrollHeight + 2}px`;
  }

  // --- images -------------------------------------------------------------------------------------------------------

  async take(files) {
    for (const file of files) {
      if (!TYPES.includes(file.type)) {
        this.say(`${file.name || "That"} is not a PNG, JPEG, GIF or WebP image.`);
        continue;
      }
      this.uploading += 1;
      try {
        const { image } = await upload(await fitting(file));
        await this.show(image);
      } catch (error) {
        this.say(`The image was not taken: ${error.message}`);
      } finally {
        this.uploading -= 1;
      }
    }
  }

  async show(name) {
    this.images.push({ name, address: await imageAddress(name) });
    this.showImages();
  }

  showImages() {
    $("images").replaceChildren(...this.images.map((image) => {
      const picture = element("img");
      picture.src = image.address;
      picture.alt = "An image to send";
      const remove = button("remove", "×", () => {
        this.images = this.images.filter((one) => one !== image);
        this.showImages();
        $("prompt").focus();
      }, "Remove this image");
      return element("li", "", picture, remove);
    }));
  }

  // --- the queue ----------------------------------------------------------------------------------------------------

  restored() {
    try { return JSON.parse(stored(QUEUE)) ?? {}; } catch { return {}; }
  }

  of(conversation) {
    return this.queue[conversation] ?? [];
  }

  enqueue(conversation, message) {
    this.queue[conversation] = [...this.of(conversation), message];
    this.showQueue(conversation);
  }

  dequeue(conversation) {
    const [first, ...others] = this.of(conversation);
    this.queue[conversation] = others;
    this.showQueue(conversation);
    return first;
  }

  moveQueue(from, to) {
    this.queue[to] = [...this.of(to), ...this.of(from)];
    delete this.queue[from];
  }

  showQueue(conversation = this.shownQueue) {
    this.shownQueue = conversation;
    store(QUEUE, JSON.stringify(this.queue));
    const waiting = this.of(conversation);
    $("queued").hidden = !waiting.length;
    $("queued").replaceChildren(...waiting.map((message) => {
      const remove = button("remove", "×", () => {
        this.queue[conversation] = this.of(conversation).filter((one) => one !== message);
        this.showQueue(conversation);
        $("prompt").focus();
      }, `Remove from the queue: ${message.prompt.slice(0, 60)}`);
      return element("li", "", element("span", "", `Next: ${message.prompt}`), remove);
    }));
  }
}
