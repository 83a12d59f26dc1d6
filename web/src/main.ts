// The page of sacmil view: a list of slides, and a view of the chosen one.

import { App } from "./app";
import { getElement } from "./element";
import { listenToKeys } from "./keyboard";
import { readLink, writeLink } from "./link";
import { fetchResults, type Results } from "./server";
import { SlideList } from "./slide_list";
import { Store } from "./state";

const LINK_DELAY = 300; // milliseconds; browsers limit how often a page may change its URL

async function start(): Promise<void> {
  const results = await fetchResults();
  document.title = `${results.title} · sacmil`;
  getElement("title").textContent = results.title;
  if (!results.slides.length) throw new Error("This results folder lists no slides.");
  getElement("panels").replaceChildren();
  const { state, view, unknownSlide } = readLink(results, location.hash);
  const store = new Store(state);
  let linked = 0;
  const link = () => {
    clearTimeout(linked);
    linked = window.setTimeout(() => saveLink(results, store, desk), LINK_DELAY);
  };
  const desk = new App(results, store, link);
  const list = new SlideList(results, store);
  store.onChange(link);
  window.addEventListener("hashchange", () => openLink(results, store, desk));
  connectControls(store, desk, list);
  if (unknownSlide) desk.showRemark(unknownSlideMessage(unknownSlide));
  await desk.load(view);
}

const unknownSlideMessage = (name: string) =>
  `The link names ${name}, which is not in these results. Showing the first slide.`;

function saveLink(results: Results, store: Store, desk: App): void {
  // without the query: it may hold the token, which is secret
  history.replaceState(null, "", location.pathname + writeLink(results, store.current, desk.view));
}

function openLink(results: Results, store: Store, desk: App): void {
  const { state, view, unknownSlide } = readLink(results, location.hash);
  const sameSlide = state.slide === store.current.slide;
  store.change(state);
  if (unknownSlide) desk.showRemark(unknownSlideMessage(unknownSlide));
  if (!sameSlide) void desk.load(view);
  else if (view) desk.moveTo(view);
}

function connectControls(store: Store, desk: App, list: SlideList): void {
  const help = getElement<HTMLDialogElement>("help");
  const enabled = (id: string) => !getElement<HTMLButtonElement>(id).disabled;
  const press = (id: string) => () => enabled(id) && getElement(id).click();
  getElement("show-help").addEventListener("click", () => help.showModal());
  getElement("hide-help").addEventListener("click", () => help.close());
  getElement("copy-link").addEventListener("click", () => void copyLink());
  listenToKeys({
    stepSlide: (by) => list.step(by),
    filter: () => list.focusFilter(),
    zoom: (factor) => desk.active.canvas.zoomBy(factor),
    pan: (across, down) => desk.active.canvas.panBy(across, down),
    fit: press("fit"),
    heat: press("heat"),
    truth: press("truth"),
    compare: press("compare"),
    opacity: (by) => enabled("opacity") && changeOpacity(store, by),
    model: (model) => chooseModel(store, model),
    topTile: (by) => desk.topTiles.step(by),
    help: () => help.showModal(),
  });
}

function changeOpacity(store: Store, by: number): void {
  const opacity = Math.round(100 * (store.current.opacity + by)) / 100;
  store.change({ opacity: Math.min(1, Math.max(0, opacity)), heat: true });
}

function chooseModel(store: Store, model: number): void {
  const chooser = document.querySelector<HTMLSelectElement>("#panel-0 select");
  if (chooser && model < chooser.length) store.chooseModel(model);
}

async function copyLink(): Promise<void> {
  const note = getElement("note");
  try {
    await navigator.clipboard.writeText(location.href);
    note.textContent = "Link copied.";
  } catch {
    note.textContent = "The browser did not allow copying. Copy the link from its address bar.";
  }
}

start().catch((error: unknown) => {
  const notice = document.createElement("p");
  notice.className = "notice whole";
  notice.setAttribute("role", "alert");
  notice.textContent = error instanceof Error ? error.message : String(error);
  getElement("panels").replaceChildren(notice);
});
