// Numbers and sentences as people read them.

const whole = new Intl.NumberFormat("en");

export const counted = (count: number) => whole.format(Math.round(count));

export const percent = (share: number) => `${(100 * share).toFixed(1)} %`;

/** Few significant digits, so that small attention weights stay apart. */
export function score(value: number, digits = 3): string {
  const size = Math.abs(value);
  if (value && (size < 1e-3 || size >= 1e5)) return value.toExponential(digits - 1);
  return value.toPrecision(digits);
}

export const plural = (count: number, noun: string) =>
  `${counted(count)} ${noun}${count === 1 ? "" : "s"}`;

/** With a capital, unless it begins with a path, and a full stop. */
export function sentence(text: string): string {
  const begun = /^[a-z]+ /.test(text) ? text[0]!.toUpperCase() + text.slice(1) : text;
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}
