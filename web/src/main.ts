// The page of sacmil view: a list of slides, and the one chosen on a desk.

import { Desk } from "./desk";
import { element } from "./element";
import { listenToKeys } from "./keyboard";
import { readLink, writeLink } from "./link";
import { fetchResults, type Results } from "./server";
import { SlideList } from "./slide_list";
import { Store } from "./state";

const LINK_DELAY = 300; // milliseconds; browsers refuse to rewrite the address many times a second

async function start(): Promise<void> {
  const results = await fetchResults();
  document.title = `${results.title} · sacmil`;
  element("title").textContent = results.title;
  if (!results.slides.length) throw new Error("This results folder lists no slides.");
  element("panes").replaceChildren();
  const { state, view, unknown } = readLink(results, location.hash);
  const store = new Store(state);
  let linked = 0;
  const link = () => {
    clearTimeout(linked);
    linked = window.setTimeout(() => keepLink(results, store, desk), LINK_DELAY);
  };
  const desk = new Desk(results, store, link);
  const list = new SlideList(results, store);
  store.onChange(link);
  window.addEventListener("hashchange", () => openLink(results, store, desk));
  listen(store, desk, list);
  if (unknown) desk.tell(noSuchSlide(unknown));
  await desk.load(view);
}

const noSuchSlide = (name: string) =>
  `The link asks for ${name}, which is not in these results: shown is their first slide.`;

function keepLink(results: Results, store: Store, desk: Desk): void {
  // without what stands after ?: a token is nobody else's business
  history.replaceState(null, "", location.pathname + writeLink(results, store.now, desk.view));
}

function openLink(results: Results, store: Store, desk: Desk): void {
  const { state, view, unknown } = readLink(results, location.hash);
  const sameSlide = state.slide === store.now.slide;
  store.change(state);
  if (unknown) desk.tell(noSuchSlide(unknown));
  if (!sameSlide) void desk.load(view);
  else if (view) desk.moveTo(view);
}

function listen(store: Store, desk: Desk, list: SlideList): void {
  const help = element<HTMLDialogElement>("help");
  const enabled = (id: string) => !element<HTMLButtonElement>(id).disabled;
  const press = (id: string) => () => enabled(id) && element(id).click();
  element("show-help").addEventListener("click", () => help.showModal());
  element("hide-help").addEventListener("click", () => help.close());
  element("copy-link").addEventListener("click", () => void copyLink());
  listenToKeys({
    stepSlide: (by) => list.step(by),
    filter: () => list.focusFilter(),
    zoom: (factor) => desk.active.stage.zoomBy(factor),
    pan: (across, down) => desk.active.stage.panBy(across, down),
    fit: press("fit"),
    heat: press("heat"),
    truth: press("truth"),
    compare: press("compare"),
    opacity: (by) => enabled("opacity") && fade(store, by),
    model: (model) => chooseModel(store, model),
    topTile: (by) => desk.topTiles.step(by),
    help: () => help.showModal(),
  });
}

function fade(store: Store, by: number): void {
  const opacity = Math.round(100 * (store.now.opacity + by)) / 100;
  store.change({ opacity: Math.min(1, Math.max(0, opacity)), heat: true });
}

function chooseModel(store: Store, model: number): void {
  const chooser = document.querySelector<HTMLSelectElement>("#pane-0 select");
  if (chooser && model < chooser.length) store.chooseModel(model);
}

async function copyLink(): Promise<void> {
  const note = element("note");
  try {
    await navigator.clipboard.writeText(location.href);
    note.textContent = "Link copied.";
  } catch {
    note.textContent = "The browser refuses to copy: take the link from its address bar.";
  }
}

start().catch((error: unknown) => {
  const notice = document.createElement("p");
  notice.className = "notice whole";
  notice.setAttribute("role", "alert");
  notice.textContent = error instanceof Error ? error.message : String(error);
  element("panes").replaceChildren(notice);
});
