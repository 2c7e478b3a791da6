export function Mark() {
  return (
    <span className="flex items-center gap-2 font-semibold text-lg tracking-tight">
      <img src="/favicon.svg" alt="" className="size-6" />
      Drover
    </span>
  );
}
