package mux

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/protocol/text"
)

// inbox holds the streams that come in; only the reader touches it.
type inbox struct {
	streams map[uint32]*inStream
	last    uint32 // the peer's newest stream
	first   uint32 // the peer's first stream id: its parity
	open    int64  // the sum of open frames' sizes
	// conn is the window of all streams together. It bounds what is under way, not what is
	// kept: a byte counts as taken when it's read, so that no consumer holds up another's
	// stream.
	conn window
	mark int64 // conn.received when the running measurement began

	files     []*inFile // that may hold bytes
	receiving int       // how many streams of files are open
	careful   bool      // the windows were made smaller since the last quiet
}

// inStream is a stream that is open: a frame's, or a file's.
type inStream struct {
	win  window // of a frame
	buf  []byte
	file *inFile
}

func (in *inbox) init(first uint32) {
	in.first = first
	in.conn = newWindow(protocol.ConnCredit, -1)
}

func (s *Session) readLoop() {
	defer fault.Catch(s.caught())
	for s.ctx.Err() == nil {
		bin, msg, err := s.pipe.Read(context.Background())
		if err != nil {
			s.readFailed(err)
			return
		}
		s.lastRead.Store(s.now())
		switch {
		case bin:
			s.onChunk(msg)
		case len(msg) > protocol.MaxMessage:
			s.violate("a text message of %d bytes", len(msg))
		default:
			s.onFrame(msg, false)
		}
	}
}

func (s *Session) readFailed(err error) {
	if errors.Is(err, protocol.ErrTooBig) {
		s.violate("a message above the size limit")
		return
	}
	var ce *protocol.CloseError
	if errors.As(err, &ce) {
		err = ce
	}
	s.end(err, 0, "")
}

// onFrame handles one frame; streamed tells that it came as a stream, which only frames
// that can be long may.
func (s *Session) onFrame(b []byte, streamed bool) {
	v, err := protocol.Decode(b)
	if err != nil {
		s.violate("%v", err)
		return
	}
	if streamed && !canBeLong(v) {
		s.violate("a frame of this type in a stream")
		return
	}
	switch f := v.(type) {
	case *protocol.Ping:
		s.force(&protocol.Pong{Type: protocol.TypePong, N: f.N})
		s.learn()
	case *protocol.Pong:
		s.onPong(f.N)
	case *protocol.Open:
		s.onOpen(f)
	case *protocol.Credit:
		if bad := s.out.grant(f.Stream, f.Bytes); bad != "" {
			s.violate("%s", bad)
		}
	case *protocol.Goodbye:
		s.notify(f)
	default:
		if s.cfg.Handler != nil {
			s.onServerFrame(v)
		} else {
			s.onAgentFrame(v)
		}
	}
}

func canBeLong(v any) bool {
	switch v.(type) {
	case *protocol.Request, *protocol.Response, *protocol.FactsUpdate, *protocol.Resume:
		return true
	}
	return false
}

// onServerFrame handles, on the agent's side, what only a server sends.
func (s *Session) onServerFrame(v any) {
	switch f := v.(type) {
	case *protocol.Request:
		s.onRequest(f)
	case *protocol.Cancel:
		if !s.work.cancel(f.ID, f.Reason) {
			s.ignored.Add(1)
		}
	case *protocol.Resume:
		s.onResume(f)
	case *protocol.Config:
		s.notify(f)
	default:
		s.violate("a frame that a server doesn't send")
	}
}

// onAgentFrame handles, on the calling side, what only an agent sends.
func (s *Session) onAgentFrame(v any) {
	switch f := v.(type) {
	case *protocol.Response:
		if bad := badResponse(f); bad != "" {
			s.violate("%s", bad)
		} else if ok, bad := s.calls.respond(f); bad != "" {
			s.violate("%s", bad)
		} else if !ok {
			s.late.Add(1)
		}
	case *protocol.Progress:
		f.Message = text.Line(f.Message, protocol.MaxLine)
		if !s.calls.progress(f) {
			s.late.Add(1)
		}
	case *protocol.FactsUpdate, *protocol.Log, *protocol.Epoch:
		s.notify(f)
	case *protocol.Resume:
		if len(f.IDs) > 0 {
			s.violate("a resume with ids from an agent")
			return
		}
		if s.onFates(f) {
			s.notify(f)
		}
	default:
		s.violate("a frame that an agent doesn't send")
	}
}

func (s *Session) notify(f any) {
	if s.cfg.Notify != nil {
		s.cfg.Notify(f)
	}
}

func badResponse(r *protocol.Response) string {
	switch {
	case r.TookUS < 0:
		return "a response that took negative time"
	case r.Error != nil && !r.Error.WellFormed():
		return "an error with an unknown code or a malformed reason"
	}
	return ""
}

func (s *Session) onOpen(f *protocol.Open) {
	in := &s.in
	switch {
	case f.Kind != protocol.KindFrame && (f.Kind != protocol.KindFile || s.cfg.Version < 2):
		s.violate("a stream of unknown kind")
	case f.Stream%2 != in.first%2 || f.Stream <= in.last || f.Stream == 0:
		s.violate("a stream id out of order")
	case len(in.streams) >= protocol.MaxStreams:
		s.violate("more than %d open streams", protocol.MaxStreams)
	case f.Kind == protocol.KindFile:
		s.openFile(f)
	case f.Size < 1 || f.Size > protocol.MaxFrame:
		s.violate("a stream of kind frame of %d bytes", f.Size)
	case in.open+f.Size > protocol.MaxOpen:
		s.violate("too many bytes in open streams")
	default:
		in.open += f.Size
		in.add(f.Stream, &inStream{win: newWindow(protocol.InitialCredit, f.Size)})
	}
}

// openFile gives a file's stream to its call.
func (s *Session) openFile(f *protocol.Open) {
	in := &s.in
	if f.Size < -1 {
		s.violate("a stream of kind file of %d bytes", f.Size)
		return
	}
	file, bad := s.newInFile(f), ""
	if s.cfg.Handler != nil {
		bad = s.work.attach(f.ID, file)
	} else {
		bad = s.calls.attach(f.ID, file)
	}
	if bad != "" {
		s.violate("%s", bad)
		return
	}
	in.sweep()
	in.files = append(in.files, file)
	in.receiving++
	in.add(f.Stream, &inStream{file: file})
}

func (in *inbox) add(id uint32, st *inStream) {
	in.last = id
	if in.streams == nil {
		in.streams = map[uint32]*inStream{}
	}
	in.streams[id] = st
}

// onChunk handles one binary message. What it carries is paid for from two windows; what
// was consumed is given back in portions.
func (s *Session) onChunk(msg []byte) {
	if len(msg) < protocol.ChunkHeader {
		s.violate("a binary message without a header")
		return
	}
	id, flags, data := binary.BigEndian.Uint32(msg), msg[4], msg[protocol.ChunkHeader:]
	in, st := &s.in, s.in.streams[id]
	n := int64(len(data))
	switch {
	case st == nil:
		s.violate("a chunk for a stream that isn't open")
	case flags&^(protocol.FlagEnd|protocol.FlagReset) != 0, flags == protocol.FlagEnd|protocol.FlagReset:
		s.violate("unknown flags")
	case flags == protocol.FlagReset:
		if n > 0 {
			s.violate("a reset with a payload")
			return
		}
		in.close(id, st)
		if st.file != nil {
			st.file.void()
		}
	case n > protocol.MaxChunk, n > in.conn.left():
		s.violate("a chunk beyond its credit")
	case n == 0 && flags == 0:
		s.violate("an empty chunk")
	default:
		in.conn.received += n
		in.conn.taken += n
		s.receive(id, st, data, flags == protocol.FlagEnd)
		s.credit(0, in.conn.due())
	}
}

// receive takes one chunk of a stream.
func (s *Session) receive(id uint32, st *inStream, data []byte, end bool) {
	if st.file == nil {
		s.consume(id, st, data, end)
		return
	}
	if bad := st.file.push(data, end); bad != "" {
		s.violate("%s", bad)
		return
	}
	if end {
		s.in.close(id, st)
	} else {
		s.probe()
	}
}

func (s *Session) consume(id uint32, st *inStream, data []byte, end bool) {
	w, n := &st.win, int64(len(data))
	switch {
	case n > w.left():
		s.violate("a chunk beyond its credit")
		return
	case w.received+n > w.end, end && w.received+n != w.end:
		s.violate("a stream that isn't as long as it said")
		return
	}
	st.buf = append(st.buf, data...)
	w.received += n
	w.taken += n
	if end {
		s.in.close(id, st)
		s.onFrame(st.buf, true)
		return
	}
	s.credit(id, w.due())
}

func (s *Session) credit(stream uint32, n int64) {
	if n > 0 {
		s.force(&protocol.Credit{Type: protocol.TypeCredit, Stream: stream, Bytes: n})
	}
}

// close ends a stream. After the last file the windows are as they were at first.
func (in *inbox) close(id uint32, st *inStream) {
	delete(in.streams, id)
	if st.file == nil {
		in.open -= st.win.end
		return
	}
	if in.receiving--; in.receiving == 0 {
		in.conn.limit, in.careful = protocol.ConnCredit, false
	}
}
