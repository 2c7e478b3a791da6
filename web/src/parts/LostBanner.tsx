import { useIsFetchFailing } from "../api/health";
import { Notice } from "./Notice";

/** Warns that what's on the page is old. */
export function LostBanner() {
  if (!useIsFetchFailing()) return null;
  return (
    <div className="sticky top-0 z-10 mt-4 shadow">
      <Notice tone="warn" title="No connection to the server">
        What you see may be out of date. This page tries again by itself.
      </Notice>
    </div>
  );
}
