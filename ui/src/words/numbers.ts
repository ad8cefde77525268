/** Numbers as people read them; the same in English and Korean but for the percent sign's space. */
import type { Language } from "./index";

const THIN = "\u202f";

function sign(language: Language): string {
  return language === "ko" ? "%" : `${THIN}%`;
}

/** A fraction as a percentage with one digit; what would round to 0 says that it is less. */
export function percent(share: number, language: Language, digits = 1): string {
  const smallest = 10 ** -digits;
  const value = 100 * share;
  if (value > 0 && value < smallest / 2) return `<${THIN}${smallest}${sign(language)}`;
  return `${value.toFixed(digits)}${sign(language)}`.replace("-", "−");
}

/** A fraction with five significant digits, and the same as a percentage: what a reader cites. */
export function exact(share: number, language: Language): string {
  return `${significant(share, 5)} (${percent(share, language, 3)})`;
}

/** So many significant digits; powers of ten only for what is very small or large. */
export function significant(value: number, digits = 4): string {
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : value < 0 ? "−∞" : "–";
  const size = Math.abs(value);
  if (size >= 1e-4 && size < 1e7) {
    const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
    return value.toFixed(Math.min(decimals, 12)).replace("-", "−");
  }
  const [mantissa, power] = value.toExponential(digits - 1).split("e");
  return `${mantissa}·10${raised(Number(power))}`.replace("-", "−");
}

/** A number with so many digits after the point. */
export function decimal(value: number, digits: number): string {
  return Number.isFinite(value) ? value.toFixed(digits).replace("-", "−") : significant(value);
}

/** A difference of two fractions in percentage points, with its sign. */
export function points(change: number): string {
  const text = (100 * change).toFixed(1);
  if (text === "0.0" || text === "-0.0") return "0.0";
  return (change > 0 ? `+${text}` : text).replace("-", "−");
}

/** How many times: ×2.3. */
export function times(value: number): string {
  return `×${value < 100 ? value.toFixed(1) : Math.round(value).toLocaleString("en")}`;
}

function raised(power: number): string {
  const small = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  return String(power).replace(/[-\d]/g, (one) => (one === "-" ? "⁻" : (small[Number(one)] ?? "")));
}
