# syntax=docker/dockerfile:1
# Two images: `docker build --target server .` and `docker build --target agent .`
# The stages run on the builder's platform and cross-compile, so that other platforms need no emulation.

FROM --platform=$BUILDPLATFORM node:22-bookworm-slim AS page
WORKDIR /src/web
COPY web/package.json web/package-lock.json web/.npmrc ./
RUN npm ci
COPY web ./
RUN npm run build

FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY protocol ./protocol
COPY migrations ./migrations
COPY agent ./agent
COPY server ./server
COPY web/*.go ./web/
COPY --from=page /src/web/dist ./web/dist
ARG TARGETOS TARGETARCH VERSION=dev
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
      -ldflags "-s -w -X main.version=$VERSION" -o /out/ ./server/cmd/drover ./agent/cmd/drover-agent \
 && mkdir -p /out/data /out/tmp && chmod 1777 /out/tmp

# The server needs nothing but itself and the certificates that PostgreSQL over TLS is checked with.
FROM scratch AS server
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build --chown=65532:65532 /out/data /data
COPY --from=build /out/tmp /tmp
COPY --from=build /out/drover /drover
USER 65532:65532
ENV DROVER_DATA=/data DROVER_LISTEN=0.0.0.0:7400
VOLUME /data
EXPOSE 7400
STOPSIGNAL SIGTERM
ENTRYPOINT ["/drover"]
CMD ["serve"]

# The agent runs commands, so it has a system around it. It manages this container, not its host.
FROM debian:bookworm-slim AS agent
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates procps && rm -rf /var/lib/apt/lists/*
RUN useradd --system --create-home --home-dir /var/lib/drover-agent --shell /bin/bash drover && chmod 0700 /var/lib/drover-agent
COPY --from=build /out/drover-agent /usr/local/bin/drover-agent
USER drover
VOLUME /var/lib/drover-agent
STOPSIGNAL SIGTERM
ENTRYPOINT ["drover-agent"]
CMD ["run", "--state", "/var/lib/drover-agent"]
