// Numbers and messages as text for the user.

const countFormat = new Intl.NumberFormat("en");

export const formatCount = (count: number) => countFormat.format(Math.round(count));

export const formatPercent = (share: number) => `${(100 * share).toFixed(1)} %`;

/** Whole percent, as Python's :.0%. */
export const formatWholePercent = (share: number) => `${Math.round(100 * share)}%`;

/** Few significant digits, so that small attention weights remain distinct. */
export function formatScore(value: number, digits = 3): string {
  const size = Math.abs(value);
  if (value && (size < 1e-3 || size >= 1e5)) return value.toExponential(digits - 1);
  return value.toPrecision(digits);
}

/** At most four significant digits, as Python's :.4g. */
export const formatNumber = (value: number, digits = 4) =>
  String(Number(value.toPrecision(digits)));

export const formatPlural = (count: number, noun: string) =>
  `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;

/** Add a full stop and, unless the text begins with a path, a capital. */
export function toSentence(text: string): string {
  const begun = /^[a-z]+ /.test(text) ? text[0]!.toUpperCase() + text.slice(1) : text;
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}
