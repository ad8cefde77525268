/** Mouse, wheel, pen and fingers on the map, as the few things they mean. */

export interface Gestures {
  pan(x: number, y: number): void;
  zoom(factor: number, at: { x: number; y: number }): void;
  /** The pointer rests here; `null` once it has gone. */
  hover(at: { x: number; y: number } | null): void;
  tap(at: { x: number; y: number }): void;
  doubleTap(at: { x: number; y: number }): void;
  /** Let go while moving, in pixels per millisecond. */
  fling(x: number, y: number): void;
  /** Something took hold of the map: whatever still glides stops. */
  hold(): void;
  /** Whether the wheel is the map's; in a notebook it scrolls until the map has the focus. */
  wheelIsOurs(event: WheelEvent): boolean;
}

interface Finger {
  x: number;
  y: number;
}

const SLIP = 5; // pixels that a finger may move and still have tapped
const TWICE = 350; // milliseconds between the two taps of a double tap

export function listen(element: HTMLElement, gestures: Gestures): () => void {
  const fingers = new Map<number, Finger>();
  let start: (Finger & { moved: boolean }) | null = null;
  let speed = { x: 0, y: 0, at: 0 };
  let lastTap = { x: 0, y: 0, at: -Infinity };

  const place = (event: MouseEvent): Finger => {
    const box = element.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };

  const down = (event: PointerEvent): void => {
    if (event.pointerType === "mouse" && event.button !== 0) return;
    element.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, place(event));
    start = fingers.size === 1 ? { ...place(event), moved: false } : null;
    speed = { x: 0, y: 0, at: event.timeStamp };
    gestures.hold();
  };

  const move = (event: PointerEvent): void => {
    const now = place(event);
    const finger = fingers.get(event.pointerId);
    if (!finger) {
      if (event.pointerType !== "touch") gestures.hover(now);
      return;
    }
    const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      pinch(finger, now, other);
    } else {
      if (start && Math.hypot(now.x - start.x, now.y - start.y) > SLIP) start.moved = true;
      if (!start || start.moved) drag(finger, now, event.timeStamp);
      else return; // not yet a drag: the finger stays where it came down
    }
    fingers.set(event.pointerId, now);
  };

  const drag = (from: Finger, to: Finger, at: number): void => {
    gestures.pan(to.x - from.x, to.y - from.y);
    const passed = Math.max(at - speed.at, 1);
    const fresh = Math.min(passed / 60, 1); // an average over the last 60 ms
    speed = {
      x: speed.x * (1 - fresh) + ((to.x - from.x) / passed) * fresh,
      y: speed.y * (1 - fresh) + ((to.y - from.y) / passed) * fresh,
      at,
    };
  };

  const pinch = (from: Finger, to: Finger, other: Finger): void => {
    const apart = (finger: Finger): number =>
      Math.max(Math.hypot(finger.x - other.x, finger.y - other.y), 1);
    gestures.pan((to.x - from.x) / 2, (to.y - from.y) / 2);
    const middle = { x: (to.x + other.x) / 2, y: (to.y + other.y) / 2 };
    gestures.zoom(apart(to) / apart(from), middle);
  };

  const up = (event: PointerEvent): void => {
    if (!fingers.delete(event.pointerId)) return;
    const at = place(event);
    if (event.type === "pointerup" && start && !start.moved) {
      const twice = event.timeStamp - lastTap.at < TWICE;
      if (twice && Math.hypot(at.x - lastTap.x, at.y - lastTap.y) < 20) {
        gestures.doubleTap(at);
        lastTap.at = -Infinity;
      } else {
        gestures.tap(at);
        lastTap = { ...at, at: event.timeStamp };
      }
    } else if (start && event.timeStamp - speed.at < 50) {
      gestures.fling(speed.x, speed.y);
    }
    start = null;
  };

  const leave = (event: PointerEvent): void => {
    if (!fingers.has(event.pointerId)) gestures.hover(null);
  };

  const wheel = (event: WheelEvent): void => {
    if (!gestures.wheelIsOurs(event)) return;
    event.preventDefault();
    gestures.hold();
    const pixels = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
    if (event.shiftKey) {
      gestures.pan(-(event.deltaX || event.deltaY) * pixels, 0);
      return;
    }
    // A pinch on a trackpad comes as small wheel steps with the control key.
    const gain = event.ctrlKey ? 0.01 : 0.0018;
    const step = Math.min(Math.max(event.deltaY * pixels, -400), 400);
    gestures.zoom(Math.exp(-step * gain), place(event));
  };

  element.addEventListener("pointerdown", down);
  element.addEventListener("pointermove", move);
  element.addEventListener("pointerup", up);
  element.addEventListener("pointercancel", up);
  element.addEventListener("pointerleave", leave);
  element.addEventListener("wheel", wheel, { passive: false });
  return () => {
    element.removeEventListener("pointerdown", down);
    element.removeEventListener("pointermove", move);
    element.removeEventListener("pointerup", up);
    element.removeEventListener("pointercancel", up);
    element.removeEventListener("pointerleave", leave);
    element.removeEventListener("wheel", wheel);
  };
}
