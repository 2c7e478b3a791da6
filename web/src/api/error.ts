/** A refusal by the server: its code and a message that says what to do next. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, body: unknown) {
    const { code, message } = read(body);
    super(message ?? `The server answered ${status}`);
    this.name = "ApiError";
    this.status = status;
    this.code = code ?? "internal";
  }
}

function read(body: unknown): { code?: string; message?: string } {
  if (typeof body !== "object" || body === null) return {};
  const inner = "error" in body && typeof body.error === "object" && body.error !== null ? body.error : body;
  return {
    code: "code" in inner && typeof inner.code === "string" ? inner.code : undefined,
    message: "message" in inner && typeof inner.message === "string" ? inner.message : undefined,
  };
}
