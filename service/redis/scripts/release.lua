#!lua flags=allow-oom
-- Give a lease back if it is still ours; a clean release forgets the attempts at this offset.
-- KEYS: lease, meta   ARGV: token, '1' when clean   Answers 1, or 0 when it was not ours.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
if ARGV[2] == '1' then
  redis.call('HSET', KEYS[2], 'attempts', 0)
end
return redis.call('DEL', KEYS[1])
