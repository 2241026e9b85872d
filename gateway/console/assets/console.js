// Keeps a page up to date: takes whole pages from the server and changes what differs. Without it every page works, it
// just does not follow.
'use strict';
(() => {
  const live = document.getElementById('live');
  if (!live || !('EventSource' in window)) return;
  const byId = (id) => document.getElementById(id);
  const cut = byId('cut');

  // A beat comes every five seconds; three of them missing is a cut that the network did not tell.
  const SILENCE_MS = 16000;
  // After this long without a snapshot the connection is made anew.
  const RECONNECT_MS = 3000;

  let offset = Number(live.dataset.now) - Date.now();
  let heard = performance.now();
  let lastServerTime = Number(live.dataset.now);
  let cutSince = null;
  let waiting = null;
  let source = null;
  let retry = null;

  const now = () => Date.now() + offset;
  const utc = (ms) => new Date(ms).toISOString().replace('T', ' ').replace('Z', ' UTC');

  const span = (ms) => {
    const seconds = Math.floor(Math.max(ms, 0) / 1000);
    const days = Math.floor(seconds / 86400);
    const hours = Math.floor(seconds / 3600) % 24;
    const minutes = Math.floor(seconds / 60) % 60;
    if (days) return `${days} d ${hours} h`;
    if (hours) return `${hours} h ${minutes} min`;
    if (minutes) return `${minutes} min ${seconds % 60} s`;
    return `${seconds} s`;
  };
  const relative = (at) => (at > now() ? `in ${span(at - now())}` : `${span(now() - at)} ago`);

  const say = (node, text) => {
    if (node && node.textContent !== text) node.textContent = text;
  };

  const tick = () => {
    for (const node of live.querySelectorAll('.relative')) say(node, `(${relative(Number(node.dataset.at))})`);
    for (const node of live.querySelectorAll('.left')) say(node, span(Number(node.dataset.ends) - now()));
    if (cutSince !== null) say(byId('cut-ago'), `(${span(now() - cutSince)} ago)`);
    else say(byId('asof'), utc(lastServerTime));
    if (cutSince === null && performance.now() - heard > SILENCE_MS) disconnected();
  };

  // What a row is about: its head, or all that it says but how long ago.
  const key = (row) => {
    const head = row.querySelector('th[scope="row"]');
    if (head) return head.textContent;
    const copy = row.cloneNode(true);
    for (const node of copy.querySelectorAll('.relative, .left')) node.remove();
    return copy.textContent;
  };

  const rows = (from, to) => {
    // Several rows may be about the same: they keep their order among themselves.
    const old = new Map();
    for (const row of from.children) {
      const about = key(row);
      if (!old.has(about)) old.set(about, []);
      old.get(about).push(row);
    }
    let place = from.firstElementChild;
    for (const row of Array.from(to.children)) {
      const known = old.get(key(row))?.shift();
      if (known) {
        if (known === place) place = place.nextElementSibling;
        else from.insertBefore(known, place);
        morph(known, row);
      } else {
        from.insertBefore(row, place);
      }
    }
    for (const left of old.values()) for (const row of left) row.remove();
  };

  // Makes `from` what `to` is, and touches nothing that is the same already: focus and scrolling stay.
  const morph = (from, to) => {
    if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) {
      from.replaceWith(to);
      return;
    }
    if (from.nodeType !== Node.ELEMENT_NODE) {
      if (from.data !== to.data) from.data = to.data;
      return;
    }
    for (const { name } of Array.from(from.attributes)) if (!to.hasAttribute(name)) from.removeAttribute(name);
    for (const { name, value } of Array.from(to.attributes)) if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    if (from.nodeName === 'TBODY') {
      rows(from, to);
      return;
    }
    const olds = Array.from(from.childNodes);
    const news = Array.from(to.childNodes);
    news.forEach((node, n) => (n < olds.length ? morph(olds[n], node) : from.append(node)));
    for (const node of olds.slice(news.length)) node.remove();
  };

  const selecting = () => {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && live.contains(selection.anchorNode);
  };

  const apply = (frame) => {
    const had = live.contains(document.activeElement);
    const page = new DOMParser().parseFromString(frame.html, 'text/html').body;
    const olds = Array.from(live.childNodes);
    const news = Array.from(page.childNodes);
    news.forEach((node, n) => (n < olds.length ? morph(olds[n], node) : live.append(node)));
    for (const node of olds.slice(news.length)) node.remove();
    document.title = `${frame.title} – dlock console`;
    if (had && document.activeElement === document.body) byId('main').focus();
    tick();
  };

  const take = (event) => {
    const frame = JSON.parse(event.data);
    alive(frame.now_ms);
    // Nobody's selection is taken away; what came meanwhile is shown when it ends.
    if (selecting()) waiting = frame;
    else apply(frame);
  };

  const alive = (serverTime) => {
    heard = performance.now();
    lastServerTime = serverTime;
    offset = serverTime - Date.now();
    if (retry) { clearTimeout(retry); retry = null; }
    if (cutSince !== null) {
      cutSince = null;
      cut.hidden = true;
    }
    say(byId('connection'), 'Live. ');
    say(byId('asof'), utc(serverTime));
  };

  const disconnected = () => {
    if (cutSince === null) {
      cutSince = now();
      say(byId('cut-at'), utc(cutSince));
      say(byId('cut-ago'), '(0 s ago)');
      cut.hidden = false;
      say(byId('connection'), '');
    }
    if (!retry) {
      retry = setTimeout(() => { retry = null; connect(); if (cutSince !== null) disconnected(); }, RECONNECT_MS);
    }
  };

  const connect = () => {
    if (source) source.close();
    source = new EventSource(live.dataset.source);
    source.addEventListener('snapshot', take);
    source.addEventListener('update', take);
    source.addEventListener('beat', (event) => alive(JSON.parse(event.data).now_ms));
    source.addEventListener('error', disconnected);
  };

  document.addEventListener('selectionchange', () => {
    if (waiting && !selecting()) {
      const frame = waiting;
      waiting = null;
      apply(frame);
    }
  });
  setInterval(tick, 1000);
  connect();
  // A page that comes back from the browser's cache has lost its stream.
  window.addEventListener('pageshow', (event) => { if (event.persisted) connect(); });
  window.addEventListener('pagehide', () => source && source.close());
})();
