// Browsers start no workers for pages that are opened from files, and the search is a worker. Here,
// a hidden frame runs the script of the worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #waiting = [];
    #scope;

    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const scope = (this.#scope = frame.contentWindow);
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const load = (address) =>
        new Promise((resolve, reject) => {
          const script = scope.document.createElement("script");
          Object.assign(script, { src: address, onload: resolve, onerror: reject });
          scope.document.head.append(script);
        });
      scope.importScripts = (...addresses) => Promise.all(addresses.map(load));
      load(url).then(() => {
        const waiting = this.#waiting;
        this.#waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      });
    }

    postMessage(data) {
      if (this.#waiting) this.#waiting.push(data);
      else this.#scope.dispatchEvent(new this.#scope.MessageEvent("message", { data }));
    }
  };
}
