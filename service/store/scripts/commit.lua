#!lua flags=allow-oom
-- For each of several partitions: write every effect of a prefix of the log and move the offset, or
-- write nothing.
-- There is no rollback: everything that can be refused is refused before the first effect. What is
-- pushed is pushed before that, without a look at each tail: where one is no list, the server says
-- so, and the elements before it are taken back.
-- KEYS, of each partition: lease, meta, log, heads, tails of streams that only moved, then the keys
--       of the effects
-- ARGV, of each partition: number of its keys, number of the arguments that follow, token, expected
--       offset, new offset, observations done, number of tails, elements for them and positions of
--       their streams, two lists in msgpack; then each effect as operation, number of its key after
--       the log, number of arguments, arguments
-- Of thousands of streams the server would take most of its time to read arguments one by one.
-- Answers for each partition OK, ALREADY, FENCED or "INVALID: why".
local call = redis.call

-- operation: type its key must have; false: any
local TYPES = {
  HSET = 'hash', HDEL = 'hash', RPUSH = 'list', ZADD = 'zset', ZREM = 'zset',
  FEED = 'stream', ANSWER = 'stream', DROP = 'list', CUT = 'list',
  UNLINK = false,
}

local function fits(operation, n)
  if operation == 'HSET' or operation == 'ZADD' then return n >= 2 and n % 2 == 0 end
  if operation == 'HDEL' or operation == 'ZREM' or operation == 'RPUSH' then return n >= 1 end
  if operation == 'ANSWER' then return n >= 4 and n % 2 == 0 end -- ms, oldest, then id, results
  if operation == 'DROP' or operation == 'CUT' then return n == 1 end -- position
  if operation == 'FEED' then return n >= 3 and n % 2 == 1 end -- bound, then id, entry
  return n == 0
end

-- What only a FEED needs: most commits have none, and making a function takes its time.
local function feeds()
  local NO_ID = '0-0'

  -- Ids are compared as text: their numbers may be too long for a double.
  local function less(a, b)
    if #a ~= #b then return #a < #b end
    return a < b
  end

  local function before(a, b)
    local a_ms, a_seq = string.match(a, '^(%d+)%-(%d+)$')
    local b_ms, b_seq = string.match(b, '^(%d+)%-(%d+)$')
    if a_ms ~= b_ms then return less(a_ms, b_ms) end
    return less(a_seq, b_seq)
  end

  local function is_id(text)
    for part in string.gmatch(text, '%d+') do
      if less('18446744073709551615', part) or (#part > 1 and part:sub(1, 1) == '0') then
        return false
      end
    end
    return string.match(text, '^%d+%-%d+$') ~= nil
  end

  -- A feed's bound on its length, and ids that rise.
  local function bad_feed(first, last)
    if not string.match(ARGV[first], '^[1-9]%d*$') or #ARGV[first] > 15 then return true end
    local newest = NO_ID
    for i = first + 1, last, 2 do
      if not is_id(ARGV[i]) or not before(newest, ARGV[i]) then return true end
      newest = ARGV[i]
    end
    return false
  end

  local function newest_of(key)
    if redis.call('EXISTS', key) == 0 then return NO_ID end
    local info = redis.call('XINFO', 'STREAM', key)
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then return info[i + 1] end
    end
  end

  -- Each entry names the one before it, so that a reader sees what was trimmed away; 'c' is the
  -- checksum of both ids, the entry has its own. One that is not newer than the newest is there
  -- already: a repeated effect.
  local function feed(key, first, last)
    local newest = newest_of(key)
    for i = first + 1, last, 2 do
      local id = ARGV[i]
      if before(newest, id) then
        local check = redis.sha1hex(id .. ' ' .. newest):sub(1, 8)
        redis.call('XADD', key, 'MAXLEN', '~', ARGV[first], id, 'e', ARGV[i + 1], 'b', newest,
          'c', check)
        newest = id
      end
    end
  end
  return bad_feed, feed
end
local bad_feed, feed

local function bad_score(first, last)
  for i = first, last, 2 do
    local score = tonumber(ARGV[i])
    if not score or score ~= score then return true end
  end
  return false
end

local function bad_answer(first, last)
  if not string.match(ARGV[first], '^[1-9]%d*$') or #ARGV[first] > 15 then return true end
  local function is_id(text)
    return string.match(text, '^[1-9]%d*%-[1-9]%d*$') and #text <= 31
  end
  if not is_id(ARGV[first + 1]) then return true end
  for i = first + 2, last, 2 do
    if not is_id(ARGV[i]) then return true end
  end
  return false
end

-- Results for one API process: kept for so many ms, but for those before the oldest, and told.
local PUBLISHED = 262144 -- a long message would fill the buffers of its connection
local told = {} -- messages to publish when all is written, one for each process: most cost is theirs
local function publish(message)
  local text = table.concat(message.places, ' ') .. '\n' .. table.concat(message.results)
  call('SPUBLISH', message.channel, text)
end

-- A message says partition, id and length of each of its results, which follow; 0: they are too long.
-- It goes to the channel of the first of them.
local function tell(key, id, results)
  local partition, process = string.match(key, '{(%d+)}(.*)')
  if #results > PUBLISHED then results = '' end
  local message = told[process]
  if message and message.size + #results > PUBLISHED then
    publish(message)
    message = nil
  end
  if not message then
    message = {channel = key, size = 0, places = {}, results = {}}
    told[process] = message
  end
  message.size = message.size + #results
  message.places[#message.places + 1] = partition .. ' ' .. id .. ' ' .. #results
  message.results[#message.results + 1] = results
end

local function answer(key, first, last)
  for i = first + 2, last, 2 do
    local id, results = ARGV[i], ARGV[i + 1]
    local added = redis.pcall('XADD', key, 'MINID', '=', ARGV[first + 1], id, 'b', results)
    if type(added) == 'table' then -- what is there has later ids, and is of no use
      call('DEL', key)
      call('XADD', key, id, 'b', results)
    end
    tell(key, id, results)
  end
  call('PEXPIRE', key, ARGV[first])
end

-- Position of the first row of an element of a tail, and the one after its last; damaged: 0.
local function span_of(element)
  if #element < 12 then return 0, 0 end
  local a, b, c, d, e, f, count = string.byte(element, 6, 12) -- after mark and checksum
  local first = a + 256 * (b + 256 * (c + 256 * (d + 256 * (e + 256 * f))))
  return first, first + count
end

-- Drop the first elements of a tail, whose rows are all before a position. Most have as many rows as
-- the first, and are not looked at: of each that is, Lua makes a text.
local PAGE = 8
local function drop(key, position)
  local old, n = 0, nil
  local first, after = span_of(call('LINDEX', key, 0) or '')
  local rows = math.max(after - first, 1)
  local last = math.floor((position - first) / rows) - 1
  if last > 0 and span_of(call('LINDEX', key, last) or '') == first + last * rows then old = last end
  repeat
    local elements = call('LRANGE', key, old, old + PAGE - 1)
    n = 0
    while n < #elements and select(2, span_of(elements[n + 1])) <= position do n = n + 1 end
    old = old + n
  until n < PAGE
  if old > 0 then call('LTRIM', key, old, -1) end
end

-- Drop the last elements of a tail, whose rows are all from a position on.
local function cut(key, position)
  local last = call('LINDEX', key, -1)
  while last and span_of(last) >= position do
    call('RPOP', key)
    last = call('LINDEX', key, -1)
  end
end

-- unpack() and a call's arguments live on Lua's stack, which ends at about 8,000; even, for pairs.
local MOST = 3998
local function run(operation, key, arguments, first, last)
  repeat
    call(operation, key, unpack(arguments, first, math.min(first + MOST - 1, last)))
    first = first + MOST
  until first > last
end

-- A list in msgpack; empty where it is none.
local function listed(packed)
  local good, list, more = pcall(cmsgpack.unpack, packed)
  return good and more == nil and type(list) == 'table' and list or {}
end

-- Commit a partition whose keys follow KEYS[base], and whose arguments are ARGV[from] to ARGV[to].
local function commit(base, from, to)
  local lease, meta, log = KEYS[base + 1], KEYS[base + 2], KEYS[base + 3]
  local expected, new = ARGV[from + 1], ARGV[from + 2]
  if call('GET', lease) ~= ARGV[from] then
    return 'FENCED'
  end
  local stored = call('HMGET', meta, 'offset', 'done', 'in', 'trying', 'tries')
  local offset = stored[1] or '0-0:-1'
  if offset ~= expected then
    return offset == new and 'ALREADY' or 'FENCED'
  end

  local types = {} -- of each key, as it will be after the effects so far
  local function fault(operation, key, first, last)
    local wanted = TYPES[operation]
    if wanted == nil then return 'unknown operation ' .. tostring(operation) end
    if not key then return operation .. ' without a key' end
    if last > to or not fits(operation, last - first + 1) then
      return operation .. ' ' .. key .. ' with ' .. (last - first + 1) .. ' arguments'
    end
    if operation == 'ZADD' and bad_score(first, last) then
      return operation .. ' ' .. key .. ' with a bad score'
    end
    if operation == 'ANSWER' and bad_answer(first, last) then
      return operation .. ' ' .. key .. ' with a bad time or id'
    end
    if operation == 'ANSWER' and not string.match(key, '{%d+}') then
      return operation .. ' ' .. key .. ' of no partition'
    end
    if operation == 'FEED' then
      if not feed then bad_feed, feed = feeds() end
      if bad_feed(first, last) then return 'FEED ' .. key .. ' with a bad bound or id' end
    end
    if (operation == 'DROP' or operation == 'CUT') and not string.match(ARGV[first], '^%d+$') then
      return operation .. ' ' .. key .. ' to a bad position'
    end
    if key == lease or key == meta or key == log then return operation .. ' on ' .. key end
    if not wanted then
      types[key] = 'none'
      return nil
    end
    local kind = types[key] or call('TYPE', key).ok
    if kind ~= 'none' and kind ~= wanted then
      return operation .. ' on ' .. key .. ', a ' .. kind
    end
    types[key] = wanted
    return nil
  end

  -- A damaged counter stops nobody: as if nothing waited after this.
  local done = tonumber(stored[2] or '0')
  done = done and done + tonumber(ARGV[from + 3]) or tonumber(stored[3] or '0') or 0
  local ms, seq, index = string.match(new, '^(%d+)%-(%d+):(%-?%d+)$')
  if not ms then return 'INVALID: offset ' .. new end
  local log_type = call('TYPE', log).ok
  if log_type ~= 'stream' and log_type ~= 'none' then return 'INVALID: the log is a ' .. log_type end

  local heads, tails = KEYS[base + 4], tonumber(ARGV[from + 4])
  local elements, names = listed(ARGV[from + 5]), listed(ARGV[from + 6])
  local positions = listed(ARGV[from + 7])
  if #elements ~= tails or #positions ~= #names then
    return 'INVALID: ' .. #elements .. ' elements of ' .. tails .. ' tails, ' .. #positions ..
      ' positions of ' .. #names
  end
  local fields = {}
  for i = 1, #names do
    fields[2 * i - 1] = names[i]
    fields[2 * i] = positions[i]
  end
  local kind = #fields > 0 and call('TYPE', heads).ok or 'none'
  if kind ~= 'hash' and kind ~= 'none' then return 'INVALID: the heads are a ' .. kind end

  local effects = from + 8 -- where they begin in ARGV
  local at = effects
  while at <= to do
    local first = at + 3
    local last = first + tonumber(ARGV[at + 2]) - 1
    local why = fault(ARGV[at], KEYS[base + 3 + tonumber(ARGV[at + 1])], first, last)
    if why then return 'INVALID: ' .. why end
    at = last + 1
  end

  for i = 1, tails do
    local key = KEYS[base + 4 + i]
    local pushed = redis.pcall('RPUSH', key, elements[i])
    if type(pushed) ~= 'number' then
      for before = 1, i - 1 do call('RPOP', KEYS[base + 4 + before]) end
      return 'INVALID: RPUSH ' .. tostring(key) .. ': ' .. pushed.err
    end
  end

  if #fields > 0 then run('HSET', heads, fields, 1, #fields) end
  at = effects
  while at <= to do
    local operation, n = ARGV[at], tonumber(ARGV[at + 2])
    local key = KEYS[base + 3 + tonumber(ARGV[at + 1])]
    local first, last = at + 3, at + 2 + n
    if operation == 'FEED' then
      feed(key, first, last)
    elseif operation == 'ANSWER' then
      answer(key, first, last)
    elseif operation == 'DROP' then
      drop(key, tonumber(ARGV[first]))
    elseif operation == 'CUT' then
      cut(key, tonumber(ARGV[first]))
    else
      run(operation, key, ARGV, first, last)
    end
    at = last + 1
  end

  done = string.format('%.0f', done)
  if new == expected then
    call('HSET', meta, 'done', done)
  else
    -- Only whole applied entries go: a partly applied one stays until its last command is. A
    -- sequence number too long for a double waits for the next millisecond's entries.
    local limit = seq
    if index == '-1' and #seq <= 15 then limit = string.format('%.0f', tonumber(seq) + 1) end
    call('XTRIM', log, 'MINID', '=', ms .. '-' .. limit)
    call('HSET', meta, 'done', done, 'attempts', 0, 'attempt_offset', new, 'offset', new,
      'offset_copy', new .. ' ' .. redis.sha1hex(new):sub(1, 8))
    if stored[4] or stored[5] then call('HDEL', meta, 'trying', 'tries') end -- see trial.lua
  end
  return 'OK'
end

local results = {}
local base, at = 0, 1
while at <= #ARGV do
  local from = at + 2
  at = from + tonumber(ARGV[at + 1])
  results[#results + 1] = commit(base, from, at - 1)
  base = base + tonumber(ARGV[from - 2])
end
for _, message in pairs(told) do publish(message) end
return results
