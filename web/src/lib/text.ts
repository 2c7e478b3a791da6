// Control characters and those that turn the writing direction or show nothing.
const unseen = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;

/** Makes what a host said fit for one line: what can't be seen shows as its code point. */
export function plain(text: string): string {
  return text.replace(unseen, (c) => `‹U+${(c.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}›`);
}
