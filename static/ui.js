/* Durable Runs: ticking countdowns, keyboard shortcuts, small helpers. Everything works without it.
   No inline handlers, no eval, safe under script-src 'self'. Listeners sit on document, so htmx swaps need no re-binding. */
(() => {
  const $ = (s, el = document) => el.querySelector(s), $$ = (s, el = document) => [...el.querySelectorAll(s)];
  document.documentElement.classList.add('has-script');
  const meta = $('meta[name=server-time]');                       // the server's clock wins over the browser's
  const skew = meta ? Date.parse(meta.content) - Date.now() : 0;
  const pad = n => String(n).padStart(2, '0');
  const words = s => s >= 172800 ? `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`
    : s >= 3600 ? `${Math.floor(s / 3600)} h ${pad(Math.floor(s % 3600 / 60))} min`
    : s >= 60 ? `${Math.floor(s / 60)} min ${pad(s % 60)} s` : `${s} s`;
  const state = (left, total) => left <= 0 ? 'over' : left <= 7200 ? 'urgent' : left <= total / 4 ? 'soon' : 'ok';
  const say = text => { const live = $('#live'); if (live) live.textContent = text; };
  const MARKS = [3600, 900, 300, 60, 0];                          // spoken once each; never every second

  function tick() {
    for (const el of $$('.countdown[data-deadline]')) {
      const left = Math.round((Date.parse(el.dataset.deadline) - Date.now() - skew) / 1000), total = +el.dataset.total;
      const now = state(left, total), text = left > 0 ? `${words(left)} left` : 'Expired';
      const label = $('.countdown-text', el), bar = $('.countdown-bar', el);
      if (label.textContent !== text) label.textContent = text;
      bar.value = Math.max(0, left);
      if (el.dataset.state !== now) { el.dataset.state = now; $('use', el).setAttribute('href', `#i-${now}`); }
      const before = +(el.dataset.left ?? left);
      if (el.dataset.announce && MARKS.some(m => before > m && left <= m)) say(left > 0 ? `${el.dataset.announce}: ${text}` : `${el.dataset.announce}: time is up`);
      el.dataset.left = left;
    }
  }
  tick(); setInterval(tick, 1000);

  const count = () => {                                           // how many rows are ticked, in the bulk bar
    const ticked = $$('.row-select:checked').length, all = $('[data-select-all]'), out = $('[data-selected]'), note = $('[data-ticked]');
    if (out) out.textContent = ticked;
    if (note) note.textContent = ticked ? ` (${ticked})` : '';
    if (all) { all.checked = ticked > 0 && ticked === $$('.row-select').length; all.indeterminate = ticked > 0 && !all.checked; }
  };
  document.addEventListener('change', e => {
    if (e.target.matches('[data-select-all]')) $$('.row-select').forEach(box => { box.checked = e.target.checked; });
    if (e.target.matches('.row-select, [data-select-all]')) count();
  });
  document.addEventListener('reset', () => setTimeout(count));     // the boxes are cleared after the event
  document.addEventListener('htmx:afterSettle', count); count();

  document.addEventListener('click', e => {
    const el = e.target.closest('[data-dialog], [data-close], [data-copy], [data-pause], [data-print]');
    if (!el) return;
    if (el.dataset.dialog) $(el.dataset.dialog).showModal();
    if ('close' in el.dataset) el.closest('dialog').close();
    if ('print' in el.dataset) window.print();
    if (el.dataset.copy) copy($(el.dataset.copy));
    if ('pause' in el.dataset) el.setAttribute('aria-pressed', el.getAttribute('aria-pressed') !== 'true');
  });
  function copy(source) {                                         // data-raw: the text itself, where marks are shown in it
    navigator.clipboard?.writeText(source.dataset.raw ?? source.textContent.trim()).then(() => say('Copied'));
  }

  // htmx 2 event names.
  document.addEventListener('htmx:beforeRequest', e => {          // polls stop when paused or hidden
    const paused = document.hidden || $('[data-pause][aria-pressed=true]');
    if (paused && e.target.closest('[data-poll]') === e.target) e.preventDefault();
  });
  for (const name of ['htmx:sendError', 'htmx:responseError']) document.addEventListener(name, e => {
    const note = $('#updated');                                   // stale numbers must never look fresh
    if (note && e.target.matches('[data-poll]')) { note.textContent = 'Not updating: connection lost'; say(note.textContent); }
  });
  document.addEventListener('htmx:afterSettle', () => {           // a refused form: the summary takes focus, once
    const summary = $('#error-summary[data-focus]');
    if (summary) { summary.removeAttribute('data-focus'); summary.focus(); }
  });
  document.addEventListener('htmx:oobBeforeSwap', ({ detail }) => { // what was typed stays readable when the panel is locked
    const slot = detail.target.id === 'decision' && $('[data-draft]', detail.fragment);
    const typed = slot && $$('textarea', detail.target).map(t => t.value.trim()).filter(Boolean).join('\n\n');
    if (typed) { slot.hidden = false; $('.typed', slot).textContent = typed; }
  });
  if (window.Idiomorph) {                                         // what the reader opened, closed, ticked or chose stays so when a poll morphs it
    Idiomorph.defaults.ignoreActiveValue = true;                  // and what is being typed is not taken back
    const kept = { open: 'details', checked: '.row-select, [data-select-all]', selected: '.bulk-bar option' };
    Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, el) => !(name in kept && el.matches(kept[name]));
  }

  let prefix = '';
  const enabled = () => localStorage.getItem('shortcuts') !== 'off', toggle = $('#shortcuts-on');
  if (toggle) { toggle.checked = enabled(); toggle.addEventListener('change', () => localStorage.setItem('shortcuts', toggle.checked ? 'on' : 'off')); }
  document.addEventListener('keydown', e => {
    if (!enabled() || e.ctrlKey || e.metaKey || e.altKey || e.target.closest('input:not([type=checkbox]), textarea, select, dialog')) return;
    const rows = $$('.queue-row .row-link'), at = rows.findIndex(r => r.closest('tr').contains(document.activeElement));
    const key = prefix + e.key; prefix = e.key === 'g' ? 'g ' : '';
    if (key === 'j' || key === 'k') { rows[Math.min(rows.length - 1, Math.max(0, at + (key === 'j' ? 1 : -1)))]?.focus(); return e.preventDefault(); }
    if (key === 'x' && at >= 0) { $('.row-select', rows[at].closest('tr'))?.click(); return e.preventDefault(); }
    const el = $(`[data-key="${CSS.escape(key)}"]`);              // a key only focuses, opens or navigates; it never signs
    if (!el) return; e.preventDefault();
    if (el.matches('summary')) { el.parentElement.open = true; ($('textarea, input:not([type=hidden]), a.btn', el.parentElement) ?? el).focus(); }
    else el.matches('input, select') ? el.focus() : el.click();
  });
})();
