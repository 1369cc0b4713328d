// The strings of the page: t(key, { count: 3 }). One table per language; a test holds their keys equal.

import en from "./strings.en.js";
import zh from "./strings.zh.js";
import { h } from "./dom.js";

export const LANGUAGES = { en: "English", zh: "中文" };
const tables = { en, zh };
let table = en;

export function speak(language) {
  table = tables[language] ?? en;
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
}

export const browserLanguage = () => (navigator.language.startsWith("zh") ? "zh" : "en");
export const has = (key) => key in table;

export function t(key, values = {}) {
  const found = table[key] ?? en[key] ?? key;
  return found.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

/** A server's refusal: a sentence in the page's language, and what the library says, which is English. */
export function refusal(problem) {
  const key = `error.${problem.code}`;
  const known = has(key);
  const detail = known ? problem.detail : problem.message;
  return [t(known ? key : "error.fault", problem.values), detail ? h("small", { class: "detail", lang: "en" }, detail) : null];
}
