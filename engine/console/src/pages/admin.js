// Signing in with a key file, and the progress of uploads. Key and passphrase never leave the browser.
"use strict";
(() => {
  const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const textOf = (bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes)));
  const urlText = (bytes) => textOf(bytes).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

  class KeyError extends Error {
    constructor(reason) {
      super(reason);
      this.reason = reason;
    }
  }

  // Reads counted fields: four bytes of length, then the bytes.
  class FieldReader {
    constructor(bytes) {
      this.bytes = bytes;
      this.at = 0;
    }
    take(length) {
      if (length < 0 || this.at + length > this.bytes.length) throw new KeyError("bad");
      this.at += length;
      return this.bytes.slice(this.at - length, this.at);
    }
    number() {
      return new DataView(this.take(4).buffer).getUint32(0);
    }
    field() {
      return this.take(this.number());
    }
  }

  const withoutZeros = (bytes) => {
    let at = 0;
    while (at < bytes.length - 1 && bytes[at] === 0) at += 1;
    return bytes.slice(at);
  };

  const RSA = { name: "RSASSA-PKCS1-v1_5", hash: "SHA-256" };
  const importJwk = (jwk) => {
    const { kty, n, e, d, p, q, dp, dq, qi } = jwk;
    if (kty !== "RSA" || !d) throw new KeyError("unsupported");
    return crypto.subtle.importKey("jwk", { kty, n, e, d, p, q, dp, dq, qi }, RSA, false, ["sign"]);
  };

  const importNative = (body) => {
    const reader = new FieldReader(body);
    const name = String.fromCharCode(...reader.field());
    if (name !== "RSA_PRIVCRT_KEY") throw new KeyError(/^(DSA|RSA)_/.test(name) ? "unsupported" : "bad");
    const jwk = { kty: "RSA" };
    for (const member of ["n", "e", "d", "p", "q", "dp", "dq", "qi"]) {
      jwk[member] = urlText(withoutZeros(reader.field()));
    }
    return importJwk(jwk);
  };

  const decrypt = async (reader, passphrase) => {
    const salt = reader.field();
    const iterations = reader.number();
    const bits = reader.number();
    const iv = reader.field();
    const ciphertext = reader.field();
    if (iterations < 1 || iterations > 10000000 || ![128, 192, 256].includes(bits)) throw new KeyError("bad");
    const secret = new TextEncoder().encode(passphrase);
    const material = await crypto.subtle.importKey("raw", secret, "PBKDF2", false, ["deriveKey"]);
    const derivation = { name: "PBKDF2", hash: "SHA-1", salt, iterations };
    const key = await crypto.subtle.deriveKey(
      derivation, material, { name: "AES-CBC", length: bits }, false, ["decrypt"]);
    return new Uint8Array(await crypto.subtle.decrypt({ name: "AES-CBC", iv }, key, ciphertext));
  };

  const importKey = async (bytes, passphrase) => {
    const text = bytes.length < 65536 ? new TextDecoder().decode(bytes).trim() : "";
    if (text.startsWith("{")) return importJwk(JSON.parse(text));
    const pem = /-----BEGIN PRIVATE KEY-----([A-Za-z0-9+/=\s]+)-----END/.exec(text);
    if (pem) {
      const der = bytesOf(pem[1].replace(/\s/g, ""));
      return crypto.subtle.importKey("pkcs8", der, RSA, false, ["sign"]);
    }
    if (text.startsWith("-----BEGIN")) throw new KeyError("unsupported");
    const reader = new FieldReader(bytes);
    const encryption = reader.number();
    if (encryption === 1) return importNative(reader.take(bytes.length - 4));
    if (encryption === 4) return importNative(await decrypt(reader, passphrase));
    throw new KeyError("unsupported");
  };

  const signIn = async (form) => {
    const file = form.querySelector("#key-file").files[0];
    const key = await importKey(
      new Uint8Array(await file.arrayBuffer()), form.querySelector("#passphrase").value);
    const nonce = bytesOf(form.dataset.nonce);
    const own = crypto.getRandomValues(new Uint8Array(32));
    const covered = new Uint8Array([...nonce, ...own]);
    const signature = await crypto.subtle.sign(RSA.name, key, covered);
    form.elements.cnonce.value = textOf(own);
    form.elements.signature.value = textOf(signature);
    form.submit();
  };

  const keyForm = document.getElementById("key-form");
  keyForm?.addEventListener("submit", (event) => {
    event.preventDefault();
    const error = document.getElementById("key-error");
    error.hidden = true;
    signIn(keyForm).catch((failure) => {
      error.textContent =
        failure.reason === "unsupported" ? keyForm.dataset.unsupported : keyForm.dataset.bad;
      error.hidden = false;
    });
  });

  // The columns of a row of CSV.
  const columnsOf = (row, separator) => {
    const columns = [""];
    let quoted = false;
    for (const c of row) {
      if (c === '"') quoted = !quoted;
      else if (c === separator && !quoted) columns.push("");
      else columns[columns.length - 1] += c;
    }
    return columns.map((column) => column.trim());
  };
  const handleColumn = (header, separator) =>
    columnsOf(header, separator).findIndex((name) => name.toLowerCase() === "handle");

  // The rows of CSV: a quoted column may have line ends.
  const splitRows = (text) => {
    const rows = [];
    let [row, quoted] = ["", false];
    for (const line of text.split(/\r?\n/)) {
      row = row === "" ? line : `${row}\n${line}`;
      for (const c of line) if (c === '"') quoted = !quoted;
      if (!quoted) {
        if (row.trim() !== "" && !row.startsWith("#")) rows.push(row);
        row = "";
      }
    }
    if (row !== "") rows.push(row);
    return rows;
  };

  // The records of an upload, each as lines that belong together: a line of JSON, or all rows of CSV
  // with the same handle, because each part replaces whole records.
  const splitRecords = (text) => {
    const plain = text.replace(/^\uFEFF/, "");
    if (plain.trimStart().startsWith("{")) {
      const lines = plain.split(/\r?\n/).filter((line) => line.trim() !== "" && !line.startsWith("#"));
      // Indented objects cannot be told apart here, and are sent together.
      try { JSON.parse(lines[0]); } catch { return { header: "", records: [plain] }; }
      return { header: "", records: lines };
    }
    const rows = splitRows(plain);
    const named = /^"?sep=(.?)"?$/i.exec(rows[0] ?? "");
    const head = named ? rows.splice(0, 2) : rows.splice(0, 1);
    const header = head[head.length - 1] ?? "";
    const has = (separator) => handleColumn(header, separator) >= 0;
    const separator = named ? named[1] || "\t" : [",", ";", "\t"].find(has) ?? ",";
    const column = handleColumn(header, separator);
    // Something else than a table; the server knows more forms.
    if (column < 0) return { header: "", records: [plain] };
    const records = new Map();
    for (const row of rows) {
      const handle = columnsOf(row, separator)[column] ?? "";
      const earlier = records.get(handle);
      records.set(handle, earlier === undefined ? row : `${earlier}\n${row}`);
    }
    return { header: head.join("\n"), records: [...records.values()] };
  };

  // The parts in which records are sent: each is one commit, and progress is shown after each.
  const [PART_RECORDS, PART_LENGTH] = [250, 200000];
  // Refused records that are shown; the result has all of them.
  const REFUSED_SHOWN = 10;
  const splitParts = (records, most) => {
    const parts = [];
    let length = 0;
    for (const record of records) {
      const last = parts[parts.length - 1];
      if (last && last.length < Math.min(PART_RECORDS, most) && length + record.length <= PART_LENGTH) {
        last.push(record);
        length += record.length;
      } else {
        parts.push([record]);
        length = record.length;
      }
    }
    return parts;
  };

  const upload = async (form, text) => {
    const { header, records } = splitRecords(text);
    const part = document.getElementById("upload-progress-part");
    const [progress, state, link] =
      ["upload-progress", "upload-state", "upload-download"].map((id) => document.getElementById(id));
    part.hidden = false;
    link.hidden = true;
    [progress.max, progress.value] = [Math.max(records.length, 1), 0];
    let [result, done, failed] = ["", 0, 0];
    const refused = [];
    try {
      for (const lines of splitParts(records, Number(form.dataset.recordsMax))) {
        const fields = new URLSearchParams({
          csrf: form.elements.csrf.value,
          records: (header === "" ? lines : [header, ...lines]).join("\n"),
        });
        for (const option of ["replace", "allow_orphans"]) {
          if (form.elements[option].checked) fields.set(option, "true");
        }
        const answer = await fetch(form.action, {
          method: "POST", body: fields, headers: { Accept: "application/json" } });
        // A refusal says why; one that is no answer of the page has only its status.
        const outcome = await answer.json().catch(() => ({}));
        if (!answer.ok) throw new Error(outcome.error ?? `${answer.status} ${answer.statusText}`);
        result += result === "" ? outcome.csv : outcome.csv.replace(/^[^\n]*\n/, "");
        [done, failed] = [done + outcome.done, failed + outcome.failed];
        progress.value += lines.length;
        refused.push(...outcome.refused);
        const told = form.dataset.done.replace("{}", done).replace("{}", failed);
        state.textContent = [told, ...refused.slice(0, REFUSED_SHOWN)].join("; ");
      }
    } finally {
      // After an error, what was done before it.
      link.href = URL.createObjectURL(new Blob([result], { type: "text/csv" }));
      link.hidden = false;
      link.focus();
    }
  };

  const uploadForm = document.getElementById("upload-form");
  if (uploadForm) {
    document.getElementById("upload-file-part").hidden = false;
    uploadForm.addEventListener("submit", (event) => {
      event.preventDefault();
      const file = document.getElementById("upload-file").files[0];
      const text = file ? file.text() : Promise.resolve(uploadForm.elements.records.value);
      text.then((it) => upload(uploadForm, it)).catch((error) => {
        document.getElementById("upload-state").textContent = String(error.message);
      });
    });
  }
})();
