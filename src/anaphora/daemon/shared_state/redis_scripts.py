"""Lua scripts that run atomically in Redis. Limits use Redis's time, so that the clocks of nodes do
not matter."""

from __future__ import annotations

from hashlib import sha1

import msgspec


class RedisScript(msgspec.Struct, frozen=True):
    source: str
    sha: str


def _script(source: str) -> RedisScript:
    return RedisScript(source, sha1(source.encode(), usedforsecurity=False).hexdigest())


#: The window of a minute, as in `windows.py`: a hash with the requests `r` and tokens `t` in total
#: and of each slot, the oldest slot `f`, and the id `i` of the window.
_WINDOW = """
local function open(key, at)
  local time = redis.call('TIME')
  local now = at or (time[1] * 1000 + math.floor(time[2] / 1000))
  local slot = math.floor(now / 250)
  local head = redis.call('HMGET', key, 'f', 'r', 't', 'i')
  local w = {key = key, now = now, slot = slot, first = tonumber(head[1]) or slot,
             requests = tonumber(head[2]) or 0, tokens = tonumber(head[3]) or 0,
             id = head[4] or (time[1] .. '.' .. time[2])}
  -- All of it is over, or a clock is more than an hour wrong: not slot by slot.
  if not (slot - w.first <= 482 and w.first - slot <= 14400) then
    redis.call('DEL', key)
    w.first, w.requests, w.tokens = slot, 0, 0
  end
  w.slot = math.max(slot, w.first)
  while w.first <= w.slot - 241 do
    local old = redis.call('HMGET', key, 'r' .. w.first, 't' .. w.first)
    if old[1] then
      w.requests = w.requests - old[1]
      w.tokens = w.tokens - old[2]
      redis.call('HDEL', key, 'r' .. w.first, 't' .. w.first)
    end
    w.first = w.first + 1
  end
  return w
end

local function add(w, requests, tokens)
  redis.call('HINCRBY', w.key, 'r' .. w.slot, requests)
  redis.call('HINCRBY', w.key, 't' .. w.slot, tokens)
  w.requests = w.requests + requests
  w.tokens = w.tokens + tokens
end

local function close(w)
  redis.call('HSET', w.key, 'f', w.first, 'r', w.requests, 't', w.tokens, 'i', w.id)
  redis.call('PEXPIRE', w.key, 61000)
end
"""

#: KEYS: window, running calls. ARGV: limits of requests, tokens and running calls (empty: none),
#: tokens, lease, its milliseconds. Returns milliseconds to wait, for what, the slot, the window.
TAKE = _script(
    _WINDOW
    + """
local requests, tokens, running = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local amount, lease = tonumber(ARGV[4]), ARGV[5]
local w = open(KEYS[1])
if running then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', w.now)
  if redis.call('ZCARD', KEYS[2]) >= running then
    close(w)
    return {50, 'running', w.slot, w.id}
  end
end
local used, taken, wait, by = w.requests, w.tokens, 0, ''
local room = tokens and math.max(0, tokens - amount)
local function over()
  return (requests and used > requests - 1) or (room and taken > room)
end
if over() then
  by = (requests and used > requests - 1) and 'requests' or 'tokens'
  for slot = w.first, w.slot do
    if not over() then break end
    local old = redis.call('HMGET', w.key, 'r' .. slot, 't' .. slot)
    if old[1] then
      used = used - old[1]
      taken = taken - old[2]
      wait = (slot + 1) * 250 + 60000 - w.now
    end
  end
end
if wait <= 0 then
  wait, by = 0, ''
  add(w, 1, amount)
  if running then
    redis.call('ZADD', KEYS[2], w.now + tonumber(ARGV[6]), lease)
    redis.call('PEXPIRE', KEYS[2], tonumber(ARGV[6]) + 60000)
  end
end
close(w)
return {wait, by, w.slot, w.id}
"""
)

#: KEYS: window. ARGV: the time of the call in milliseconds. Counts one call.
COUNT = _script(
    _WINDOW
    + """
local w = open(KEYS[1], tonumber(ARGV[1]))
add(w, 1, 0)
close(w)
"""
)

#: KEYS: window. ARGV: slot, how many tokens more.
CORRECT = _script(
    """
if redis.call('HEXISTS', KEYS[1], 't' .. ARGV[1]) == 1 then
  redis.call('HINCRBY', KEYS[1], 't' .. ARGV[1], ARGV[2])
  redis.call('HINCRBY', KEYS[1], 't', ARGV[2])
end
"""
)

#: KEYS: pointers, and last a window if ARGV has a time in milliseconds. ARGV: prefix of records'
#: names, that time. Returns [index of the pointer, id, version, data] of at most four records, and
#: the calls of the window.
FIND = _script(
    _WINDOW
    + """
local calls, pointers = 0, #KEYS
if ARGV[2] ~= '' then
  if redis.call('EXISTS', KEYS[pointers]) == 1 then
    local w = open(KEYS[pointers], tonumber(ARGV[2]))
    calls = w.requests
    close(w)
  end
  pointers = pointers - 1
end
local found, seen = {}, {}
if pointers > 0 then
  local ids = redis.call('MGET', unpack(KEYS, 1, pointers))
  for i = 1, pointers do
    local id = ids[i]
    if id and not seen[id] and #found < 4 then
      seen[id] = true
      local record = redis.call('HMGET', ARGV[1] .. id, 'v', 'd')
      if record[1] then found[#found + 1] = {i - 1, id, record[1], record[2]} end
    end
  end
end
return {found, calls}
"""
)

#: KEYS: record, digests, pointers. ARGV: id, version that is replaced, version, data, offset,
#: digests, seconds. Returns 0 if another node has replaced the version. Pointers to the last two
#: calls are kept.
SAVE = _script(
    """
local last = redis.call('HMGET', KEYS[1], 'v', 'k', 'j')
if (last[1] or '') ~= ARGV[2] then return 0 end
local offset, seconds = tonumber(ARGV[5]), ARGV[7]
if redis.call('STRLEN', KEYS[2]) < offset then return 0 end
local new, pointers = {}, {}
for i = 3, #KEYS do
  redis.call('SET', KEYS[i], ARGV[1], 'EX', seconds)
  new[KEYS[i]], pointers[i - 2] = true, KEYS[i]
end
if last[3] and last[3] ~= '' then
  for _, pointer in ipairs(cmsgpack.unpack(last[2])) do new[pointer] = true end
  for _, pointer in ipairs(cmsgpack.unpack(last[3])) do
    if not new[pointer] and redis.call('GET', pointer) == ARGV[1] then
      redis.call('DEL', pointer)
    end
  end
end
redis.call('HSET', KEYS[1], 'v', ARGV[3], 'd', ARGV[4], 'k', cmsgpack.pack(pointers),
  'j', last[2] or '')
redis.call('EXPIRE', KEYS[1], seconds)
if #ARGV[6] > 0 then redis.call('SETRANGE', KEYS[2], offset, ARGV[6]) end
redis.call('EXPIRE', KEYS[2], seconds)
return 1
"""
)

SCRIPTS = (TAKE, COUNT, CORRECT, FIND, SAVE)
